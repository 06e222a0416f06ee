"""Make DeepSpeed probe once which C++ ops can be built, in the fork server of its ranks.

DeepSpeed probes on first use (``deepspeed.ops.__compatible_ops__``), by compiling and linking programs, which
takes a tenth of a second in each rank of each trial. Not used for GPUs, because the probe queries them.
"""

import deepspeed.ops

getattr(deepspeed.ops, "__compatible_ops__", None)

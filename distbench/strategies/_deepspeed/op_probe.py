"""Makes DeepSpeed probe once which of its C++ ops could be built, in the warm parent of its ranks.

It probes when it is first asked (``deepspeed.ops.__compatible_ops__``), by compiling and linking programs,
which takes a tenth of a second in each rank of each trial. Not for GPUs, which the probe queries.
"""

import deepspeed.ops

getattr(deepspeed.ops, "__compatible_ops__", None)

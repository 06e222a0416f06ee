"""What the warm parent imports for every strategy: torch imports these lazily, in each rank anew.

Imported for their cost, not for their names.
"""

import safetensors.torch
import torch._dynamo
import torch.distributed.algorithms._checkpoint.checkpoint_wrapper
import torch.distributed.algorithms.ddp_comm_hooks.default_hooks
import torch.distributed.checkpoint
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.utils._python_dispatch

import distbench.metrics._collectives
import distbench.metrics._cpu_allocator
import distbench.metrics._timeline
import distbench.strategies._ddp
import distbench.strategies._fsdp2
import distbench.worker.rank

"""Modules that the fork server imports before it forks ranks.

torch would import them lazily in each rank. They are imported for their cost, not for their names.
"""

import importlib
from contextlib import suppress

import safetensors.torch
import torch._dynamo
import torch.distributed.algorithms.ddp_comm_hooks.default_hooks
import torch.distributed.checkpoint
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.utils._python_dispatch

import distbench.worker.rank
import distbench.worker.trainer
from distbench.core import registry
from distbench.core.job import job_kinds
from distbench.system.machine import package_versions

# every rank reads its job, and imports the job's function, its model and its data
job_kinds()
for job in registry.built_in_plugins("jobs").values():
    distbench.worker.rank.rank_function(job())
for kind in ("data", "workloads"):
    registry.built_in_plugins(kind)
for kind in ("strategies", "metrics"):
    for plugin in registry.built_in_plugins(kind).values():
        for module in plugin.early_imports:
            # a missing module of one strategy must not break others; a rank that needs it reports so itself
            with suppress(Exception):
                importlib.import_module(module)
# every rank records them, and has them from here
package_versions()

"""Base of engines whose module is wrapped in DistributedDataParallel."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch.nn.parallel import DistributedDataParallel

from distbench.strategies.base import UnsupportedCase
from distbench.strategies.torch_engine.engine import TorchEngine
from distbench.strategies.torch_engine.module_names import listed
from distbench.strategies.torch_engine.readback import StorageCounter, dtype_name
from distbench.workloads.weights import plain_name

# DDP's error for parameters without gradient in the step before, by index
_UNUSED_PARAMETERS = re.compile(
    r"Parameter indices which did not receive grad for rank \d+: (?P<numbers>[\d ]+)"
)


class DdpWrappedEngine(TorchEngine):
    """Reduces gradients once per step, with DDP; a mix-in for engines that define the rest."""

    module: DistributedDataParallel
    unused_parameter_advice: ClassVar[str] = "freeze them, or use fsdp or zero"
    """Advice for a model some of whose parameters receive no gradient."""

    def forward_backward(self, micro_batch: dict[str, torch.Tensor]) -> torch.Tensor:
        try:
            return super().forward_backward(micro_batch)
        except RuntimeError as error:
            if found := _UNUSED_PARAMETERS.search(str(error)):
                raise UnsupportedCase(
                    self._unused_parameter_text([int(number) for number in found["numbers"].split()])
                ) from error
            raise

    def reduce_dtype(self) -> str:
        return dtype_name(p.dtype for p in self.module.parameters())

    def count_storages(self, counter: StorageCounter) -> None:
        """Count the reducer's buckets too: C++ owns them, so their size is taken from DDP's log data."""
        super().count_storages(counter)
        # before the last micro-batch, gradients exist beside the buckets, even if they become views of them
        are_views = self.module.gradient_as_bucket_view and all(each._is_view() for each in self._gradients())
        inside = counter.bytes["gradients"] if are_views else 0
        # rebuilding after the first step changes only their order
        sizes: str = self.module._get_ddp_logging_data()["bucket_sizes"]
        counter.add_bytes("buffers", sum(map(int, sizes.split(","))) - inside)

    def _gradient_sync(self, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self.module.no_sync()

    def _unused_parameter_text(self, numbers: list[int]) -> str:
        """Reason why DDP stops: the parameters *numbers*, as it counts them, received no gradient."""
        ignored = self.module.parameters_to_ignore
        parameters = self.module.module.named_parameters()
        reduced = [name for name, p in parameters if p.requires_grad and name not in ignored]
        names = [plain_name(reduced[number]) for number in numbers]
        return (
            "torch's DDP waits for the gradients of all trained tensors, but the loss does not use "
            f"{len(names):,} of {len(reduced):,} ({listed(names)}); {self.unused_parameter_advice}"
        )

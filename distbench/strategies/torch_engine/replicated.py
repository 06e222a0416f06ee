"""What engines share whose module is in DistributedDataParallel: copies that sum their gradients."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from distbench.strategies.torch_engine.engine import TorchEngine
from distbench.strategies.torch_engine.reading import Ledger, dtype_name


class ReplicatedEngine(TorchEngine):
    """Reduces gradients once a step, by DDP; mixed with engines that say what else there is."""

    module: DistributedDataParallel

    def reduce_dtype(self) -> str:
        return dtype_name(p.dtype for p in self.module.parameters())

    def book(self, ledger: Ledger) -> None:
        """Book the reducer's buckets too: C++ owns them, so their size is what DDP logs of itself."""
        super().book(ledger)
        # before the last micro-batch gradients are beside the buckets, also if they become views into them
        are_views = self.module.gradient_as_bucket_view and all(each._is_view() for each in self._gradients())
        inside = ledger.bytes["gradients"] if are_views else 0
        # rebuilding after the first step changes only their order
        sizes: str = self.module._get_ddp_logging_data()["bucket_sizes"]
        ledger.add("buffers", sum(map(int, sizes.split(","))) - inside)

    def _synchronised(self, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self.module.no_sync()

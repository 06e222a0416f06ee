"""The worker's side of ``ddp``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from distbench.strategies import ddp
from distbench.strategies.base import Setting
from distbench.strategies.torch_engine.engine import WrappedEngine
from distbench.strategies.torch_engine.modules import plain_module
from distbench.strategies.torch_engine.reading import Ledger, dtype_name

_HOOKS = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}
_REDUCES_IN = {hook: dtype for dtype, hook in _HOOKS.items()} | {default_hooks.allreduce_hook: None}


class DdpEngine(WrappedEngine):
    """DDP around the plain module."""

    module: DistributedDataParallel

    def reduce_dtype(self) -> str:
        # whatever hook is registered now, whoever registered it
        for hook, _ in self.module._comm_hooks:
            if dtype := _REDUCES_IN.get(hook, getattr(hook, "__qualname__", repr(hook))):
                return dtype
        return dtype_name(p.dtype for p in self.module.parameters())

    def unsynchronised(self) -> AbstractContextManager[Any]:
        return self.module.no_sync()

    def effective(self) -> dict[str, Any]:
        return {
            **super().effective(),
            "bucket_bytes_cap": self.module.bucket_bytes_cap,
            "smaller_first_bucket": self.module.bucket_bytes_cap_default,
            "gradient_as_bucket_view": self.module.gradient_as_bucket_view,
            "static_graph": self.module.static_graph,
        }

    def book(self, ledger: Ledger) -> None:
        """Book the reducer's buckets too: C++ owns them, so their size is what DDP logs of itself."""
        super().book(ledger)
        inside = ledger.bytes["gradients"] if self.module.gradient_as_bucket_view else 0
        # rebuilding after the first step changes only their order
        sizes: str = self.module._get_ddp_logging_data()["bucket_sizes"]
        ledger.add("buffers", sum(map(int, sizes.split(","))) - inside)

    def _synchronised(self, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self.module.no_sync()


def build_ddp(
    strategy: ddp.DistributedDataParallel, setting: Setting, kind: Callable[..., DdpEngine] = DdpEngine
) -> DdpEngine:
    """DDP engine of this rank, made by *kind* of the setting, the wrapped module and its layers."""
    module, layers = plain_module(setting)
    wrapped = DistributedDataParallel(
        module,
        device_ids=[setting.device] if setting.device.type == "cuda" else None,
        bucket_cap_mb=strategy.bucket_cap_asked,
        gradient_as_bucket_view=strategy.gradient_as_bucket_view,
        static_graph=strategy.static_graph,
    )
    engine = kind(setting, wrapped, layers)
    precision = setting.case.precision
    if precision.reduce != precision.master:
        wrapped.register_comm_hook(None, _HOOKS[precision.reduce])
    return engine

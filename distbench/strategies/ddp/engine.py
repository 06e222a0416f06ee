"""The worker's side of ``ddp``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from distbench.strategies import ddp
from distbench.strategies.base import Setting
from distbench.strategies.torch_engine.engine import WrappedEngine
from distbench.strategies.torch_engine.modules import plain_module
from distbench.strategies.torch_engine.replicated import ReplicatedEngine

_HOOKS = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}
_REDUCES_IN = {hook: dtype for dtype, hook in _HOOKS.items()} | {default_hooks.allreduce_hook: None}


class DdpEngine(ReplicatedEngine, WrappedEngine):
    """DDP around the plain module."""

    if_unused = (
        "set ddp: {find_unused_parameters: true}, or {static_graph: true} if they are the same in every "
        "step, or freeze them"
    )

    def reduce_dtype(self) -> str:
        # whatever hook is registered now, whoever registered it
        for hook, _ in self.module._comm_hooks:
            if dtype := _REDUCES_IN.get(hook, getattr(hook, "__qualname__", repr(hook))):
                return dtype
        return super().reduce_dtype()

    def unsynchronised(self) -> AbstractContextManager[Any] | None:
        return self.module.no_sync()

    def effective(self) -> dict[str, Any]:
        return {
            **super().effective(),
            "bucket_bytes_cap": self.module.bucket_bytes_cap,
            "smaller_first_bucket": self.module.bucket_bytes_cap_default,
            "gradient_as_bucket_view": self.module.gradient_as_bucket_view,
            "static_graph": self.module.static_graph,
            "find_unused_parameters": self.module.find_unused_parameters,
        }


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
        find_unused_parameters=strategy.find_unused_parameters,
    )
    engine = kind(setting, wrapped, layers)
    precision = setting.case.precision
    if precision.reduce != precision.master:
        wrapped.register_comm_hook(None, _HOOKS[precision.reduce])
    return engine

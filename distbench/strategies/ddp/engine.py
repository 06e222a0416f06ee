"""Engine of ``ddp``, in the worker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from distbench.core.case import PrecisionConfig
from distbench.strategies import ddp
from distbench.strategies.base import RankContext
from distbench.strategies.torch_engine.engine import DdpWrappedEngine, WrappedEngine
from distbench.strategies.torch_engine.modules import load_plain_module

_HOOK_BY_DTYPE = {"bf16": default_hooks.bf16_compress_hook, "fp16": default_hooks.fp16_compress_hook}
_DTYPE_BY_HOOK = {hook: dtype for dtype, hook in _HOOK_BY_DTYPE.items()} | {
    default_hooks.allreduce_hook: None
}


class DdpEngine(DdpWrappedEngine, WrappedEngine):
    """DDP around the plain module."""

    unused_parameter_advice = (
        "set ddp: {find_unused_parameters: true}, or {static_graph: true} if they are the same in every "
        "step, or freeze them"
    )

    def reduce_dtype(self) -> str:
        # the hook that is registered now, whichever code registered it
        for hook, _ in self.module._comm_hooks:
            if dtype := _DTYPE_BY_HOOK.get(hook, getattr(hook, "__qualname__", repr(hook))):
                return dtype
        return super().reduce_dtype()

    def without_communication(self) -> AbstractContextManager[Any] | None:
        return self.module.no_sync()

    def effective_settings(self) -> dict[str, Any]:
        return {
            **super().effective_settings(),
            "bucket_bytes_cap": self.module.bucket_bytes_cap,
            "smaller_first_bucket": self.module.bucket_bytes_cap_default,
            "gradient_as_bucket_view": self.module.gradient_as_bucket_view,
            "static_graph": self.module.static_graph,
            "find_unused_parameters": self.module.find_unused_parameters,
        }


def build_ddp(
    strategy: ddp.DistributedDataParallel,
    context: RankContext,
    engine_class: Callable[..., DdpEngine] = DdpEngine,
) -> DdpEngine:
    """DDP engine of this rank.

    *engine_class* makes it from the context, the wrapped module and its layers.
    """
    module, layers = load_plain_module(context)
    wrapped = DistributedDataParallel(
        module,
        device_ids=[context.device] if context.device.type == "cuda" else None,
        **ddp_arguments(strategy),
    )
    engine = engine_class(context, wrapped, layers)
    reduce_in_dtype(wrapped, context.case.precision)
    return engine


def ddp_arguments(strategy: ddp.DistributedDataParallel) -> dict[str, Any]:
    """Arguments of torch's DDP for the options of *strategy*."""
    return {
        "bucket_cap_mb": strategy.explicit_bucket_cap_mb,
        "gradient_as_bucket_view": strategy.gradient_as_bucket_view,
        "static_graph": strategy.static_graph,
        "find_unused_parameters": strategy.find_unused_parameters,
    }


def reduce_in_dtype(wrapped: DistributedDataParallel, precision: PrecisionConfig) -> None:
    """Make *wrapped* reduce gradients in the dtype of *precision*, where it is not that of its parameters."""
    if precision.reduce != precision.master:
        wrapped.register_comm_hook(None, _HOOK_BY_DTYPE[precision.reduce])

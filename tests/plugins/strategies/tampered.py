from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class Tampered(Strategy):
    """DDP with something changed behind the back of who asked for it."""

    how: Literal["compresses", "twice", "attention", "silent", "foreign", "scheduled"] = "compresses"
    """compresses: reduces gradients in fp16. twice: updates twice a step. attention: allows one of
    its kernels only. silent: does not tell whether it clips. foreign: tells what nobody knows.
    scheduled: has a learning-rate schedule of its own."""

    @property
    def engine_class(self) -> str:
        return "DistributedDataParallel"

    @property
    def label(self) -> str:
        return f"tampered-{self.how}"

    def build(self, context: RankContext) -> Engine:
        import torch
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        from distbench.strategies.ddp import DistributedDataParallel

        engine: Any = DistributedDataParallel().build(context)
        told, step = engine.effective_settings, engine._optimizer.step
        if self.how == "compresses":
            engine.framework_engine.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif self.how == "twice":
            engine._optimizer.step = lambda: (step(), step())
        elif self.how == "attention":
            torch.backends.cuda.enable_flash_sdp(False)
        elif self.how == "silent":
            engine.effective_settings = lambda: {k: v for k, v in told().items() if k != "clip_grad_norm"}
        elif self.how == "scheduled":
            engine._scheduler = torch.optim.lr_scheduler.ExponentialLR(engine._optimizer, gamma=0.5)
        else:
            engine.effective_settings = lambda: {**told(), "shards_of_mine": 3}
        return engine  # type: ignore[no-any-return]

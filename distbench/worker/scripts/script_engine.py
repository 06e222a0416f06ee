"""A script's live objects as the engine and the strategy that metrics read."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp import FullyShardedDataParallel as FullyShardedV1

from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine
from distbench.strategies.torch_engine.layer_sharding import count_fsdp_storages, unsharded_elements
from distbench.strategies.torch_engine.readback import StorageCounter
from distbench.worker.scripts.live_objects import LiveTraining


class ScriptStrategy(Strategy):
    """The strategy of a script: it is built already, and no theory says what it should move or keep."""

    engine_class: ClassVar[str] = ""
    label: ClassVar[str] = "script"

    def build(self, context: RankContext) -> Engine:
        """Never called.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("a script builds its own training")


class ScriptEngine:
    """The part of an ``Engine`` that metrics read; nothing of the training goes through it."""

    def __init__(self, live: LiveTraining) -> None:
        self._live = live
        self.skipped_steps = 0
        """Updates that a loss scaler has skipped so far."""

    def unsharded_elements(self) -> int:
        """See ``Engine.unsharded_elements``."""
        return sum(unsharded_elements(model) for model in self._live.models)

    def memory_by_kind(self) -> dict[str, int] | None:
        """See ``Engine.memory_by_kind``; None: DeepSpeed and FSDP1 keep gradients where only they know."""
        live = self._live
        if live.deepspeed is not None or next(live.modules_of(FullyShardedV1), None) is not None:
            return None
        counter = StorageCounter(live.device)
        for unit in live.modules_of(FSDPModule):
            count_fsdp_storages(unit, counter)
        counter.count("parameters", live.parameters)
        counter.count("gradients", [each.grad for each in live.parameters])
        own = [[*each.state.values()] for each in live.optimizers if getattr(each, "state", None)]
        counter.count("optimizer_state", [state for states in own for state in states])
        groups = [group["params"] for each in live.optimizers for group in getattr(each, "param_groups", ())]
        counter.count("master", groups)
        return counter.bytes


def parameter_digest(parameters: list[torch.nn.Parameter]) -> str:
    """Digest of the bits of the trained *parameters*: equal replicas have equal digests."""
    total = 0
    for number, parameter in enumerate(parameters):
        if parameter.requires_grad and parameter.numel():
            bits = parameter.detach().reshape(-1).view(_INTEGERS[parameter.element_size()])
            total = (total * 1_000_003 + int(bits.sum(dtype=torch.int64)) + number) % (1 << 64)
    return f"{total:016x}"


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

from __future__ import annotations

import functools
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class Forgets(Strategy):
    """DDP whose checkpoints lack something."""

    what: Literal["optimizer", "steps", "later", "gathering", "disk", "ending"] = "optimizer"
    """optimizer: its state is not restored. steps: its count of steps is not. later: what was loaded is
    right, and lost with every step after it. gathering: it can't gather its full state.
    disk: its disk is full. ending: rank 1 never ends its load."""

    @property
    def engine_class(self) -> str:
        return "DistributedDataParallel"

    @property
    def label(self) -> str:
        return f"forgets-{self.what}"

    def build(self, context: RankContext) -> Engine:
        from distbench.strategies.ddp import DistributedDataParallel

        engine: Any = DistributedDataParallel().build(context)
        if self.what == "gathering":
            engine.gather_state = functools.partial(Engine.gather_state, engine)
        elif self.what == "disk":
            engine.save_sharded = functools.partial(_save_on_a_full_disk, engine.save_sharded)
        else:
            engine.load_sharded = functools.partial(self._load, engine, context.rank, engine.load_sharded)
            engine.scatter_state = functools.partial(self._load, engine, context.rank, engine.scatter_state)
        return engine  # type: ignore[no-any-return]

    def _load(self, engine: Any, rank: int, load: Callable[[Any], None], given: Any) -> None:
        load(given)
        optimizer, step = engine._optimizer, engine.step
        if self.what == "optimizer":
            optimizer.state.clear()
        elif self.what == "steps":
            for state in optimizer.state.values():
                state["step"].zero_()
        elif self.what == "later":
            engine.step = lambda: (optimizer.state.clear(), step())
        elif self.what == "ending" and rank == 1:
            time.sleep(1000)


def _save_on_a_full_disk(save: Callable[[Any], None], folder: Any) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        save(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

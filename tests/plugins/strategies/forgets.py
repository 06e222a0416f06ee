from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Literal

from distbench.strategies.base import Engine, Setting, Strategy


@dataclass(frozen=True)
class Forgets(Strategy):
    """DDP whose checkpoints lack something."""

    what: Literal["optimizer", "steps", "later", "gathering", "disk", "ending"] = "optimizer"
    """optimizer: its state is not restored. steps: its count of steps is not. later: what was loaded is
    right, and lost with the first step. gathering: it can't gather its full state. disk: its disk is full.
    ending: rank 1 never ends its load."""

    @property
    def engine(self) -> str:
        return "DistributedDataParallel"

    @property
    def label(self) -> str:
        return f"forgets-{self.what}"

    def build(self, setting: Setting) -> Engine:
        import resource

        from distbench.strategies.ddp import DistributedDataParallel

        engine = DistributedDataParallel().build(setting)
        optimizer = engine._optimizer  # type: ignore[attr-defined]
        load, load_full, save, step = engine.load, engine.load_full, engine.save, engine.step
        if self.what == "gathering":
            engine.consolidate = functools.partial(Engine.consolidate, engine)  # type: ignore[method-assign]
            return engine

        def fill_disk(folder):  # type: ignore[no-untyped-def]
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
            try:
                save(folder)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        def forget() -> None:
            if self.what == "optimizer":
                optimizer.state.clear()
            for state in optimizer.state.values():
                if self.what == "steps":
                    state["step"].zero_()

        def forgetful(load, given):  # type: ignore[no-untyped-def]
            load(given)
            if self.what == "ending" and setting.rank == 1:
                time.sleep(1000)
            forget()
            engine.step = late_step if self.what == "later" else step  # type: ignore[method-assign]

        def late_step() -> None:
            optimizer.state.clear()
            step()

        if self.what == "disk":
            engine.save = fill_disk  # type: ignore[method-assign]
        engine.load = functools.partial(forgetful, load)  # type: ignore[method-assign]
        engine.load_full = functools.partial(forgetful, load_full)  # type: ignore[method-assign]
        return engine

from __future__ import annotations

import json
import time
from dataclasses import dataclass

from distbench.launchers.base import Exit, Handle, Launch, Launcher, Site
from distbench.trial import TrialFile, error_file, log_file, result_file

TOLD = {
    "absent": {},
    "began": 0.0,
    "effective": {"parameters": 1},
    "environment": {},
    "not_finite": None,
    "tables": {},
    "warmup_losses": [],
    "window": [0.0, 1.0],
}


@dataclass(frozen=True)
class Pretend(Launcher):
    """Starts nothing: ranks have delivered at once, what the options and the strategy say."""

    step_s: float = 0.1
    """Mean step time of the first trial; each later one takes a hundredth of it more."""
    log: str = ""
    """File that gets a line for each session, preparation and trial; empty: none."""

    def commands(self, launch: Launch) -> list[list[str]]:
        return []

    def open(self, run_id: str) -> Site:
        self.tell("open")
        return _Pretended(self)

    def tell(self, what: str) -> None:
        if self.log:
            with open(self.log, "a") as stream:  # noqa: PTH123
                stream.write(f"{what}\n")


class _Pretended(Site):
    def __init__(self, told: Pretend) -> None:
        self._told = told

    def launch(self, launch: Launch) -> Handle:
        if launch.entry == "prepare":
            self._told.tell("prepare")
            launch.file.with_suffix(".result.json").write_text('{"notes": [], "failed": {}}')
            return _Ended(0)
        trial = TrialFile.read(launch.file)
        does = trial.case.strategy.options["does"]
        self._told.tell(f"trial {trial.case.label} {launch.file.parent.name}")
        for rank in range(launch.processes):
            log_file(launch.file.parent, rank).write_text(f"rank {rank} was \x1b[32mhere\n")
            self._deliver(launch, trial, rank, does)
        return _Ended(launch.processes, hangs=does == "hangs")

    def _deliver(self, launch: Launch, trial: TrialFile, rank: int, does: str) -> None:
        if rank and does == "raises":
            told = {"at": time.time(), "phase": "time", "types": ["RuntimeError"], "traceback": ""}
            error = json.dumps({**told, "message": "the dog ate my \x1b[31mgradients"})
            error_file(launch.file.parent, rank).write_text(error)
        elif does != "hangs":
            seconds = self._told.step_s * (1 + int(launch.file.parent.name) / 100)
            samples = {"step_s": [seconds] * trial.measure.steps, "loss": [1.0] * trial.measure.steps}
            phases = {"start": 0.0, "build": 0.0, "warmup": 0.0, "time": 1.0}
            told = {**TOLD, "samples": samples, "passes": {"step_s": "time"}, "phases": phases}
            result_file(launch.file.parent, rank).write_text(json.dumps(told))

    def close(self) -> None:
        self._told.tell("close")


class _Ended(Handle):
    def __init__(self, ranks: int, *, hangs: bool = False) -> None:
        self._ranks, self._hangs = ranks, hangs

    def wait(self, seconds: float) -> list[Exit]:
        if self._hangs:
            time.sleep(seconds)
            return []
        return [Exit(rank, 0, time.time()) for rank in range(max(1, self._ranks))]

    def signal(self, number: int) -> None:
        """Nobody is there to hear it."""

    def stop(self) -> None:
        self._hangs = False

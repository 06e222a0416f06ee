"""The job ``sensitivity``: trains a case as long as it was timed, from weights moved by rounding."""

from __future__ import annotations

import dataclasses

from distbench.ipc.trial_files import Phases, TrialFile
from distbench.jobs.sensitivity import SensitivityOptions
from distbench.strategies.base import Setting
from distbench.strategies.engine import Engine
from distbench.worker.feed import Feed
from distbench.worker.perturb import moved
from distbench.worker.trainer import Delivery, Rows, Step, Trainer, Watcher


def run(trial: TrialFile, setting: Setting, phases: Phases) -> Delivery:
    """Result of this rank; only rank 0 has rows.

    Raises:
        Mismatch: the engine is not the requested one.
    """
    curve: Rows = []
    steps = trial.measure.warmup + trial.measure.steps
    for number in range(trial.job.options_as(SensitivityOptions).trainings):
        _train(setting, number, steps, _Losses(f"moved {number + 1}", phases, curve))
    return Delivery(tables={"sensitivity_curve": curve} if setting.rank == 0 else {})


def _train(setting: Setting, number: int, steps: int, watcher: _Losses) -> None:
    """Train *steps* steps from weights moved with random seed *number*.

    Where the batch is computed in one part, its rows are in another order too, which rounds anew in every
    step; in several parts another order could be another loss, if that is not the mean over the parts.
    """
    file = moved(setting, number)
    case = setting.case
    is_whole = case.batch.parts == 1
    try:
        with watcher.phases.phase("build"):
            feed = Feed(setting, number if is_whole else None)
            trainer = Trainer(dataclasses.replace(setting, weights=file), feed)
        with watcher.phases.phase("sensitivity"):
            trainer.train(range(steps), watcher)
        trainer.engine.close()
    finally:
        file.unlink(missing_ok=True)


class _Losses(Watcher):
    """Keeps the losses of one training."""

    def __init__(self, training: str, phases: Phases, curve: Rows) -> None:
        self.phases = phases
        self._training, self._curve = training, curve

    def begins(self, number: int) -> None:
        self.phases.progress.at("sensitivity", number)

    def gradients(self, step: Step, engine: Engine) -> bool:
        self._curve.append({"training": self._training, "step": step.number, "loss": step.loss})
        return True

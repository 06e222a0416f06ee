"""What the ranks of a probe do."""

from __future__ import annotations

from distbench.ipc.trial_files import Phases, TrialFile
from distbench.strategies.base import Setting
from distbench.strategies.engine import Engine
from distbench.worker.trainer import Delivery, Step, Trainer, Watcher

from . import ProbeOptions


class Counting(Watcher):
    def __init__(self, phases: Phases) -> None:
        self.rows: list[dict[str, float]] = []
        self._phases = phases

    def begins(self, number: int) -> None:
        self._phases.progress.at("probe", number)

    def updated(self, step: Step, engine: Engine, seconds: float) -> None:
        self.rows.append({"step": step.number, "loss": step.loss})


def run(trial: TrialFile, setting: Setting, phases: Phases) -> Delivery:
    asked = trial.job.options_as(ProbeOptions)
    with phases.phase("build"):
        trainer = Trainer(setting)
    watcher = Counting(phases)
    with phases.phase("probe"):
        trainer.train(range(asked.steps), watcher)
    effective = trainer.engine.effective()
    trainer.engine.close()
    return Delivery(
        samples={"probed_steps": [float(len(watcher.rows))]},
        tables={"probe_curve": watcher.rows},
        effective=effective,
    )

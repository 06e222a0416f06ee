"""What the ranks of a tally do."""

from __future__ import annotations

from distbench.ipc.trial_files import PhaseTimer, TrialInstructions
from distbench.strategies.base import RankContext
from distbench.strategies.engine import Engine
from distbench.worker.trainer import RankResult, StepHooks, Trainer, TrainingStep

from . import TallyOptions


class Counting(StepHooks):
    def __init__(self, phases: PhaseTimer) -> None:
        self.rows: list[dict[str, float]] = []
        self._phases = phases

    def before_step(self, number: int) -> None:
        self._phases.progress.report("tally", number)

    def after_update(self, step: TrainingStep, engine: Engine, seconds: float) -> None:
        self.rows.append({"step": step.number, "loss": step.loss})


def run(trial: TrialInstructions, context: RankContext, phases: PhaseTimer) -> RankResult:
    asked = trial.job.options_as(TallyOptions)
    with phases.phase("build"):
        trainer = Trainer(context)
    watcher = Counting(phases)
    with phases.phase("tally"):
        trainer.train(range(asked.steps), watcher)
    effective = trainer.engine.effective_settings()
    trainer.engine.close()
    return RankResult(
        samples={"tallied_steps": [float(len(watcher.rows))]},
        tables={"tally_curve": watcher.rows},
        effective=effective,
    )

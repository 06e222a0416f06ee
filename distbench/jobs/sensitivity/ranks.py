"""Train a case from perturbed initial weights for as many steps as were timed, on one rank."""

from __future__ import annotations

import dataclasses

from distbench.ipc.trial_files import PhaseTimer, TrialInstructions
from distbench.jobs.sensitivity import SensitivityOptions
from distbench.strategies.base import RankContext
from distbench.strategies.engine import Engine
from distbench.worker.batches import MicroBatchReader
from distbench.worker.perturb import write_perturbed_weights
from distbench.worker.trainer import RankResult, Rows, StepHooks, Trainer, TrainingStep


def run(trial: TrialInstructions, context: RankContext, phases: PhaseTimer) -> RankResult:
    """Return the result of this rank; only rank 0 has rows.

    Raises:
        Mismatch: the engine is not the requested one.
    """
    curve: Rows = []
    steps = trial.measure.warmup + trial.measure.steps
    for number in range(trial.job.options_as(SensitivityOptions).trainings):
        _train(context, number, steps, _LossRecorder(f"moved {number + 1}", phases, curve))
    return RankResult(tables={"sensitivity_curve": curve} if context.rank == 0 else {})


def _train(context: RankContext, number: int, steps: int, watcher: _LossRecorder) -> None:
    """Train *steps* steps from weights perturbed with random seed *number*.

    If the batch is computed in one part, its rows are also in a different order, which rounds differently in
    every step. In several parts a different order could change the loss, if it is not their mean.
    """
    file = write_perturbed_weights(context, number)
    case = context.case
    is_whole = case.batch.total_micro_batches == 1
    try:
        with watcher.phases.phase("build"):
            feed = MicroBatchReader(context, number if is_whole else None)
            trainer = Trainer(dataclasses.replace(context, weights_file=file), feed)
        with watcher.phases.phase("sensitivity"):
            trainer.train(range(steps), watcher)
        trainer.engine.close()
    finally:
        file.unlink(missing_ok=True)


class _LossRecorder(StepHooks):
    """Recorder of the losses of one training."""

    def __init__(self, training: str, phases: PhaseTimer, curve: Rows) -> None:
        self.phases = phases
        self._training, self._curve = training, curve

    def before_step(self, number: int) -> None:
        self.phases.progress.report("sensitivity", number)

    def before_update(self, step: TrainingStep, engine: Engine) -> bool:
        self._curve.append({"training": self._training, "step": step.number, "loss": step.loss})
        return True

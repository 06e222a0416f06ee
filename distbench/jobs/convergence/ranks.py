"""Train to a target with one seed, on one rank; record the curve and findings about training health."""

from __future__ import annotations

import math

from distbench.core import registry
from distbench.data.base import DataSource, HeldOutMetric
from distbench.ipc.trial_files import PhaseTimer, TrialInstructions
from distbench.jobs.convergence import ConvergeOptions
from distbench.strategies.base import RankContext
from distbench.strategies.engine import Engine
from distbench.worker import checks
from distbench.worker.batches import MicroBatchReader
from distbench.worker.evaluation import HeldOutEvaluation
from distbench.worker.health import TrainingHealth
from distbench.worker.trainer import RankResult, Rows, StepHooks, Trainer, TrainingStep


def run(trial: TrialInstructions, context: RankContext, phases: PhaseTimer) -> RankResult:
    """Return the result of this rank; only rank 0 has rows.

    Raises:
        Mismatch: the engine is not the requested one.
        UnsupportedCase: the model can't be evaluated.
    """
    case, options = context.case, trial.job.options_as(ConvergeOptions)
    source: DataSource = registry.create_plugin("data", case.data)
    with phases.phase("build"):
        size = case.batch.global_batch_size
        split = source.split(context.workload.shape, case.seed, size, options.eval_samples)
        feed = MicroBatchReader(context, batches=split.train)
        evaluation = HeldOutEvaluation(context, HeldOutMetric(**options.merit), split.held_out)
        trainer = Trainer(context, feed)
    checks.check_data(feed, context)
    watcher = _ConvergenceHooks(context, evaluation, options, phases)
    with phases.phase("converge"):
        trainer.train(range(options.max_steps), watcher)
    trainer.engine.close()
    return watcher.delivery


class _ConvergenceHooks(StepHooks):
    """Recorder of the curve of a training, whose steps count from 1."""

    def __init__(
        self,
        context: RankContext,
        evaluation: HeldOutEvaluation,
        options: ConvergeOptions,
        phases: PhaseTimer,
    ) -> None:
        self._context, self._evaluation = context, evaluation
        self._options, self._phases = options, phases
        self._health = TrainingHealth(context)
        self._curve: Rows = []
        self._norm: float | None = None
        self._is_comparison_due = False
        """True if the copies of ranks are due to be compared at the next step where they should be equal."""
        tables = {"converge_curve": self._curve, "converge_findings": self._health.findings}
        self.delivery = RankResult(tables=tables if context.rank == 0 else {})

    def before_step(self, number: int) -> None:
        self._phases.progress.report("converge", number + 1)

    def needs_gradients(self, number: int) -> bool:
        return _due(number + 1, self._options.gradients_every)

    def before_update(self, step: TrainingStep, engine: Engine) -> bool:
        number, self._norm = step.number + 1, None
        if not all(math.isfinite(loss) for loss in step.losses):
            self._locate_non_finite(step, engine)
            return False
        if _due(number, self._options.gradients_every):
            self._norm, self.delivery.not_finite = self._health.check_gradients(number, engine)
        return self.delivery.not_finite is None

    def after_update(self, step: TrainingStep, engine: Engine, seconds: float) -> None:
        setting, options, number = self._context, self._options, step.number + 1
        if not self.delivery.effective and engine.skipped_steps < number:
            # the optimizer state exists from here on, and an evaluation would change the effective settings
            self.delivery.effective = checks.effective_settings(engine)
            checks.check_effective(self.delivery.effective, setting, number - engine.skipped_steps)
        self._health.check_loss(number, step.loss)
        self._health.check_skipped_steps(number, engine)
        self._is_comparison_due |= _due(number, options.replicas_every)
        if self._is_comparison_due and engine.has_equal_replicas:
            self._health.check_replicas(number, engine)
            self._is_comparison_due = False
        is_evaluated = number == options.max_steps or _due(number, options.eval_every)
        samples = number * setting.case.batch.global_batch_size
        self._curve.append(
            {
                "step": number,
                "samples": samples,
                "tokens": samples * setting.workload.tokens_per_sample,
                "seconds": seconds,
                "loss": step.loss,
                "value": self._evaluation.value(engine) if is_evaluated else None,
                "grad_norm": self._norm,
            }
        )

    def _locate_non_finite(self, step: TrainingStep, engine: Engine) -> None:
        rank = next(i for i, loss in enumerate(step.losses) if not math.isfinite(loss))
        where = self._health.locate_non_finite(step.number + 1, rank, engine, step.batches)
        if rank == self._context.rank:
            value = str(step.losses[rank])
            self.delivery.not_finite = {"step": step.number + 1, "value": value, "where": where}


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0

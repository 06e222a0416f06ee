"""The job ``converge``: one training to a target with one seed, its curve, and findings about its health."""

from __future__ import annotations

import math

from distbench.core import registry
from distbench.data.base import Merit, Source
from distbench.ipc.trial_files import Phases, TrialFile
from distbench.jobs.convergence import ConvergeOptions
from distbench.strategies.base import Setting
from distbench.strategies.engine import Engine
from distbench.worker import checks
from distbench.worker.evaluation import Evaluation
from distbench.worker.feed import Feed
from distbench.worker.health import Health
from distbench.worker.trainer import Delivery, Rows, Step, Trainer, Watcher


def run(trial: TrialFile, setting: Setting, phases: Phases) -> Delivery:
    """Result of this rank; only rank 0 has rows.

    Raises:
        Mismatch: the engine is not the requested one.
        Refused: the model can't be evaluated.
    """
    case, options = setting.case, trial.job.options_as(ConvergeOptions)
    source: Source = registry.make("data", case.data)
    with phases.phase("build"):
        size = case.batch.global_batch_size
        split = source.split(setting.workload.shape, case.seed, size, options.eval_samples)
        feed = Feed(setting, batches=split.training)
        evaluation = Evaluation(setting, Merit(**options.merit), split.held_out)
        trainer = Trainer(setting, feed)
    checks.check_data(feed, setting)
    watcher = _Watcher(setting, evaluation, options, phases)
    with phases.phase("converge"):
        trainer.train(range(options.max_steps), watcher)
    trainer.engine.close()
    return watcher.delivery


class _Watcher(Watcher):
    """Keeps the curve of the training, whose steps count from 1."""

    def __init__(
        self, setting: Setting, evaluation: Evaluation, options: ConvergeOptions, phases: Phases
    ) -> None:
        self._setting, self._evaluation = setting, evaluation
        self._options, self._phases = options, phases
        self._health = Health(setting)
        self._curve: Rows = []
        self._norm: float | None = None
        self._compares = False
        """Whether the copies of ranks are to be compared as soon as they should be equal."""
        tables = {"converge_curve": self._curve, "converge_findings": self._health.findings}
        self.delivery = Delivery(tables=tables if setting.rank == 0 else {})

    def begins(self, number: int) -> None:
        self._phases.progress.at("converge", number + 1)

    def reads_gradients(self, number: int) -> bool:
        return _due(number + 1, self._options.gradients_every)

    def gradients(self, step: Step, engine: Engine) -> bool:
        number, self._norm = step.number + 1, None
        if not all(math.isfinite(loss) for loss in step.losses):
            self._trace(step, engine)
            return False
        if _due(number, self._options.gradients_every):
            self._norm, self.delivery.not_finite = self._health.gradients(number, engine)
        return self.delivery.not_finite is None

    def updated(self, step: Step, engine: Engine, seconds: float) -> None:
        setting, options, number = self._setting, self._options, step.number + 1
        if not self.delivery.effective and engine.skipped_steps < number:
            # the optimizer's state exists from here on, and an evaluation would change the settings in use
            self.delivery.effective = checks.settings_of(engine)
            checks.check_effective(self.delivery.effective, setting, number - engine.skipped_steps)
        self._health.loss(number, step.loss)
        self._health.skipped(number, engine)
        self._compares |= _due(number, options.replicas_every)
        if self._compares and engine.has_equal_replicas:
            self._health.replicas(number, engine)
            self._compares = False
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

    def _trace(self, step: Step, engine: Engine) -> None:
        rank = next(i for i, loss in enumerate(step.losses) if not math.isfinite(loss))
        where = self._health.trace(step.number + 1, rank, engine, step.batches)
        if rank == self._setting.rank:
            value = str(step.losses[rank])
            self.delivery.not_finite = {"step": step.number + 1, "value": value, "where": where}


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0

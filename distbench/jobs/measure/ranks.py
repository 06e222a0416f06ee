"""The job ``measure``: builds the engine of a case once and runs the passes on it, one after another."""

from __future__ import annotations

from distbench import registry
from distbench.metrics.base import Metric, Pass, Session
from distbench.strategies.base import Setting, Strategy
from distbench.trial import Phases, TrialFile
from distbench.worker import checks
from distbench.worker.feed import Feed
from distbench.worker.passes import Loop
from distbench.worker.trainer import Delivery, first_not_finite


def run(trial: TrialFile, setting: Setting, phases: Phases) -> Delivery:
    """Result of this rank.

    Raises:
        Mismatch: what runs is not what was requested.
    """
    case, measure = trial.case, trial.measure
    strategy: Strategy = registry.make("strategies", case.strategy)
    metrics: dict[str, Metric] = {choice.name: registry.make("metrics", choice) for choice in trial.metrics}
    with phases.phase("build"):
        for metric in metrics.values():
            metric.install()
        engine = strategy.build(setting)
        feed = Feed(setting)
    loop = Loop(setting, strategy, engine, feed, keep_traces=measure.keep_traces)
    checks.check_engine(strategy, engine, case)
    checks.check_distinct_data(feed, setting.world_size)

    def run_pass(name: Pass, steps: int) -> Session:
        with phases.phase(name):
            return loop.run(name, steps, metrics, phases.progress)

    delivery = loop.delivery
    delivery.warmup_losses = run_pass("warmup", measure.warmup).losses
    # the optimizer's state exists from here on
    delivery.effective = engine.effective()
    checks.check_effective(delivery.effective, setting)
    run_pass("time", measure.steps)
    run_pass("count", 1)
    run_pass("profile", measure.profile_steps)
    norms = run_pass("check", measure.check_steps).grad_norms
    checks.check_same_norm(norms, setting.world_size)
    run_pass("unsynced", measure.unsynced_steps)
    if broken := first_not_finite(enumerate(loop.losses)):
        delivery.not_finite = {**broken, "phase": "time"}
    return delivery

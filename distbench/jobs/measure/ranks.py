"""The job ``measure``: builds the engine of a case once and runs the passes on it, one after another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from distbench import registry
from distbench.metrics.base import Metric, Pass
from distbench.strategies.base import Setting, Strategy
from distbench.trial import Phases, TrialFile
from distbench.worker import checks
from distbench.worker.feed import Feed
from distbench.worker.passes import Loop, PassResult
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
        feed = Feed(case, setting.workload, setting.rank, setting.world_size, setting.device)
    loop = Loop(setting, strategy, engine, feed, keep_traces=measure.keep_traces)
    checks.check_engine(strategy, engine, case)
    checks.check_distinct_data(feed, setting.world_size)

    def run_pass(name: Pass, steps: int) -> PassResult:
        with phases.phase(name):
            return loop.run(name, steps, metrics, phases.progress)

    warmup = run_pass("warmup", measure.warmup)
    # the optimizer's state exists from here on
    loop.effective = engine.effective()
    checks.check_effective(loop.effective, case, setting.workload, strategy)
    timed = run_pass("time", measure.steps)
    counted = run_pass("count", 1)
    profiled = run_pass("profile", measure.profile_steps)
    checked = run_pass("check", measure.check_steps)
    checks.check_same_norm(checked.norms, setting.world_size)
    unsynced = run_pass("unsynced", measure.unsynced_steps)
    passes = [warmup, timed, counted, profiled, checked, unsynced]
    return Delivery(
        samples=_merge(result.samples for result in passes),
        passes={column: result.name for result in passes for column in result.samples},
        absent=_merge(result.absent for result in passes),
        tables=_joined(result.tables for result in passes),
        warmup_losses=warmup.losses,
        not_finite=_broken([loss for result in passes for loss in result.losses]),
        effective=loop.effective,
        window=timed.window,
    )


def _broken(losses: list[float]) -> dict[str, Any] | None:
    broken = first_not_finite(losses)
    return {**broken, "phase": "time"} if broken else None


def _merge(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {key: value for part in parts for key, value in part.items()}


def _joined(parts: Iterable[dict[str, list[dict[str, Any]]]]) -> dict[str, list[dict[str, Any]]]:
    """Rows of each table, pass after pass."""
    tables: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        for name, rows in part.items():
            tables.setdefault(name, []).extend(rows)
    return tables

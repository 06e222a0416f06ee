"""Resolution of this machine: the spread of A/A pairs, stored per machine and case."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distbench.analysis.statistics.quantiles import chi2_quantile
from distbench.core.case import Case, Measure
from distbench.core.errors import RecordError, UsageError
from distbench.core.serialization import decoded, parsed
from distbench.core.units import duration_text
from distbench.gate.metric_rules import estimator_of
from distbench.gate.metric_rules import rules as rules_of
from distbench.gate.sequential_test import Rule, pairs_for, resolvable, stopped
from distbench.gate.verdicts import Result
from distbench.record import MOST_BYTES
from distbench.record.run_folder import utc_now
from distbench.suite.gate import MOST_PAIRS, GateRules
from distbench.system.files import alone, content, write_whole, writing
from distbench.system.machine import cache_folder, machine_facts

FORMAT = 1
_FINGERPRINT = ("cpu", "cpu_cores", "memory_bytes", "gpus", "gpu_driver")


@dataclass(frozen=True)
class Calibrated:
    """Spread of the A/A pairs of one case."""

    case: str
    deviations: Mapping[str, float]
    """Number -> standard deviation of the natural logarithm of a pair's ratio."""
    pairs: int
    minutes_per_pair: float
    steps: int
    """Timed steps per trial, on which the spread depends."""
    when: str

    def smallest(self, metric: str, pairs: int) -> float | None:
        """Tightest tolerance, as a fraction, that *pairs* resolve; None if *metric* was not calibrated."""
        deviation = self.deviations.get(metric)
        return None if deviation is None else resolvable(deviation, pairs, estimator_of(metric))

    def at_best(self, metric: str, pairs: int) -> float:
        """``smallest``, if the spread is as small as its pairs allow with 95% confidence (chi-squared)."""
        estimator = estimator_of(metric)
        freedom = estimator.freedom(self.pairs)
        if freedom < 1:
            return 0.0
        least = self.deviations[metric] * math.sqrt(freedom / chi2_quantile(0.95, freedom))
        return resolvable(least, pairs, estimator)

    def stops(self, metric: str, rule: Rule) -> float | None:
        """Smallest true loss, as a fraction, that a gate by *rule* stops in 90%; None: not calibrated."""
        deviation = self.deviations.get(metric)
        return None if deviation is None else stopped(deviation, rule)


def fingerprint(machine: Mapping[str, Any]) -> str:
    """Id of a machine by what its spread depends on."""
    text = json.dumps([machine.get(key) for key in _FINGERPRINT], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def file_here() -> Path:
    """File with the calibration of this machine."""
    return cache_folder() / "calibration" / f"{fingerprint(machine_facts())}.json"


def load(measure: Measure) -> dict[str, Calibrated]:
    """Calibrations of this machine by case id, for trials with the same number of steps."""
    return {key: spread for key, spread in _stored().items() if spread.steps == measure.steps}


def save(calibrations: Mapping[str, Calibrated]) -> Path:
    """Store *calibrations*, by case id, next to those of other cases; return the file.

    Raises:
        InfrastructureError: the file can't be written.
    """
    file = file_here()
    # another calibration may end at the same time, of other cases
    with writing(file), alone(file):
        cases = {key: dataclasses.asdict(spread) for key, spread in (_stored() | dict(calibrations)).items()}
        write_whole(file, json.dumps({"format": FORMAT, "cases": cases}))
    return file


def _stored() -> dict[str, Calibrated]:
    try:
        data = parsed(content(file_here(), MOST_BYTES, follow=True), "calibration")
        cases = data["cases"] if data["format"] == FORMAT else {}
        spreads = {key: decoded(Calibrated, item, key) for key, item in cases.items()}
        numbers = [number for item in spreads.values() for number in item.deviations.values()]
        times = [item.minutes_per_pair for item in spreads.values()]
        are_usable = all(0 <= number < math.inf for number in (*numbers, *times))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecordError):
        # a cache: what can't be read is measured again
        return {}
    return spreads if are_usable else {}


def calibrated(result: Result, cases: Sequence[Case], measure: Measure) -> dict[str, Calibrated]:
    """Calibrations from the A/A pairs of *result*, by case id."""
    ids = {case.name: case.id for case in cases}
    calibrations = {}
    for case in result.cases:
        deviations = {item.metric: item.deviation for item in case.findings if item.deviation is not None}
        if "tokens_per_s" in deviations:
            calibrations[ids[case.case]] = Calibrated(
                case=case.case,
                deviations=deviations,
                pairs=next(item.pairs for item in case.findings if item.metric == "tokens_per_s"),
                minutes_per_pair=case.minutes_per_pair,
                steps=measure.steps,
                when=utc_now(),
            )
    return calibrations


def refuse_blind(rules: GateRules, cases: Sequence[Case], known: Mapping[str, Calibrated]) -> None:
    """Raise UsageError if a tolerance is below what this machine resolves with ``max_pairs``.

    The spread is itself known from a few pairs only, so it counts as the smallest that these allow.
    """
    blind = []
    for case, spread in ((case, known[case.id]) for case in cases if case.id in known):
        for metric, rule in rules_of(rules, rules.of(case.label, case.name)).items():
            smallest = spread.smallest(metric, rule.most)
            if smallest is not None and spread.at_best(metric, rule.most) > rule.effect:
                blind.append(_sentence(case.name, metric, rule, smallest, spread))
    if blind:
        more = f" (and {len(blind) - 3} more)" if len(blind) > 3 else ""
        raise UsageError("; ".join(blind[:3]) + more)


def _sentence(name: str, metric: str, rule: Rule, smallest: float, spread: Calibrated) -> str:
    needed = pairs_for(spread.deviations[metric], rule.effect, rule.estimator)
    time = duration_text(needed * spread.minutes_per_pair * 60)
    more = f", gate.max_pairs to {needed} (about {time})" if needed <= MOST_PAIRS else ""
    return (
        f"gate.{metric} = {rule.effect * 100:g}%: for {name} this machine resolves only "
        f"{smallest * 100:.1f}% with {rule.most} pairs (distbench calibrate, {spread.when}); raise the "
        f"tolerance{more} or measure.steps"
    )

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

from distbench.analysis.statistics.distributions import chi2_quantile
from distbench.core.case import Case
from distbench.core.errors import RecordError, UsageError
from distbench.core.measurement import MeasureConfig
from distbench.core.serialization import decode, parse_json
from distbench.core.units import format_duration
from distbench.gate.metric_rules import estimator_of
from distbench.gate.metric_rules import paired_rules as rules_of
from distbench.gate.sequential_test import PairRule, detectable_loss, pairs_needed, resolvable_effect
from distbench.gate.verdicts import GateResult
from distbench.record import MAX_JSON_BYTES
from distbench.record.run_folder import utc_now
from distbench.suite.gate import MAX_PAIRS, GateRules
from distbench.system.cache import cache_folder
from distbench.system.files import exclusive_lock, infrastructure_errors, read_bounded, write_atomic
from distbench.system.machine import machine_facts

FORMAT = 1
_FINGERPRINT = ("cpu", "cpu_cores", "memory_bytes", "gpus", "gpu_driver")


@dataclass(frozen=True)
class CaseCalibration:
    """Spread of the A/A pairs of one case."""

    case: str
    deviations: Mapping[str, float]
    """Number -> standard deviation of the natural logarithm of a pair's ratio."""
    pairs: int
    minutes_per_pair: float
    steps: int
    """Timed steps per trial, on which the spread depends."""
    when: str

    def resolvable_change(self, metric: str, pairs: int) -> float | None:
        """Tightest tolerance, as a fraction, that *pairs* resolve; None if *metric* was not calibrated."""
        deviation = self.deviations.get(metric)
        return None if deviation is None else resolvable_effect(deviation, pairs, estimator_of(metric))

    def smallest_resolvable_change(self, metric: str, pairs: int) -> float:
        """``resolvable_change`` at the lower end of the spread's 95% confidence interval (chi-squared)."""
        estimator = estimator_of(metric)
        freedom = estimator.degrees_of_freedom(self.pairs)
        if freedom < 1:
            return 0.0
        least = self.deviations[metric] * math.sqrt(freedom / chi2_quantile(0.95, freedom))
        return resolvable_effect(least, pairs, estimator)

    def detectable_loss(self, metric: str, rule: PairRule) -> float | None:
        """Smallest true loss, as a fraction, that *rule* stops in 90% of gates; None: not calibrated."""
        deviation = self.deviations.get(metric)
        return None if deviation is None else detectable_loss(deviation, rule)


def machine_fingerprint(machine: Mapping[str, Any]) -> str:
    """Id of a machine by the facts that its spread depends on."""
    text = json.dumps([machine.get(key) for key in _FINGERPRINT], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def calibration_file() -> Path:
    """File with the calibration of this machine."""
    return cache_folder() / "calibration" / f"{machine_fingerprint(machine_facts())}.json"


def load_calibrations(measure: MeasureConfig) -> dict[str, CaseCalibration]:
    """Calibrations of this machine by case id, for trials with the same number of steps."""
    return {key: spread for key, spread in _stored().items() if spread.steps == measure.steps}


def save_calibrations(calibrations: Mapping[str, CaseCalibration]) -> Path:
    """Store *calibrations*, by case id, next to those of other cases; return the file.

    Raises:
        InfrastructureError: the file can't be written.
    """
    file = calibration_file()
    # another calibration, of other cases, may end at the same time
    with infrastructure_errors(file), exclusive_lock(file):
        cases = {key: dataclasses.asdict(spread) for key, spread in (_stored() | dict(calibrations)).items()}
        write_atomic(file, json.dumps({"format": FORMAT, "cases": cases}))
    return file


def _stored() -> dict[str, CaseCalibration]:
    try:
        data = parse_json(read_bounded(calibration_file(), MAX_JSON_BYTES, follow=True), "calibration")
        cases = data["cases"] if data["format"] == FORMAT else {}
        spreads = {key: decode(CaseCalibration, item, key) for key, item in cases.items()}
        numbers = [number for item in spreads.values() for number in item.deviations.values()]
        times = [item.minutes_per_pair for item in spreads.values()]
        are_usable = all(0 <= number < math.inf for number in (*numbers, *times))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecordError):
        # a cache: unreadable entries are measured again
        return {}
    return spreads if are_usable else {}


def calibrations_from(
    result: GateResult, cases: Sequence[Case], measure: MeasureConfig
) -> dict[str, CaseCalibration]:
    """Calibrations from the A/A pairs of *result*, by case id."""
    ids = {case.name: case.id for case in cases}
    calibrations = {}
    for case in result.cases:
        deviations = {item.metric: item.deviation for item in case.findings if item.deviation is not None}
        if "tokens_per_s" in deviations:
            calibrations[ids[case.case]] = CaseCalibration(
                case=case.case,
                deviations=deviations,
                pairs=next(item.pairs for item in case.findings if item.metric == "tokens_per_s"),
                minutes_per_pair=case.minutes_per_pair,
                steps=measure.steps,
                when=utc_now(),
            )
    return calibrations


def check_resolution(rules: GateRules, cases: Sequence[Case], known: Mapping[str, CaseCalibration]) -> None:
    """Check that ``max_pairs`` suffice for every tolerance on this machine; otherwise raise UsageError.

    The spread is itself known from a few pairs only, so it counts as the smallest that these allow.
    """
    blind = []
    for case, spread in ((case, known[case.id]) for case in cases if case.id in known):
        for metric, rule in rules_of(rules, rules.tolerances_for(case.label, case.name)).items():
            smallest = spread.resolvable_change(metric, rule.max_pairs)
            if (
                smallest is not None
                and spread.smallest_resolvable_change(metric, rule.max_pairs) > rule.effect
            ):
                blind.append(_resolution_problem(case.name, metric, rule, smallest, spread))
    if blind:
        more = f" (and {len(blind) - 3} more)" if len(blind) > 3 else ""
        raise UsageError("; ".join(blind[:3]) + more)


def _resolution_problem(
    name: str, metric: str, rule: PairRule, smallest: float, spread: CaseCalibration
) -> str:
    needed = pairs_needed(spread.deviations[metric], rule.effect, rule.estimator)
    time = format_duration(needed * spread.minutes_per_pair * 60)
    more = f", gate.max_pairs to {needed} (about {time})" if needed <= MAX_PAIRS else ""
    return (
        f"gate.{metric} = {rule.effect * 100:g}%: for {name} this machine detects changes only from "
        f"{smallest * 100:.1f}% on with {rule.max_pairs} pairs (calibrated {spread.when}); raise the "
        f"tolerance{more} or measure.steps"
    )

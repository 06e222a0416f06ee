"""What this machine can resolve: the spread of A/A pairs, kept by machine and case."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distbench import env
from distbench.analysis.paired import pairs_for, resolvable
from distbench.case import Case, Measure
from distbench.errors import InfrastructureError, UsageError
from distbench.files import write_whole
from distbench.gate.verdicts import Result
from distbench.spec.gate import MOST_PAIRS, NOISY, Gate
from distbench.store import utc_now
from distbench.units import duration_text

FORMAT = 1
_FINGERPRINT = ("cpu", "cpu_cores", "memory_bytes", "gpus", "gpu_driver")


@dataclass(frozen=True)
class Calibrated:
    """What A/A pairs of one case have shown."""

    case: str
    deviations: Mapping[str, float]
    """Number -> standard deviation of the natural logarithm of a pair's ratio."""
    pairs: int
    minutes_per_pair: float
    steps: int
    """Timed steps of a trial: with others the spread is another."""
    when: str

    def smallest(self, metric: str, pairs: int) -> float | None:
        """Return the smallest effect, as a fraction, that *pairs* can tell; None if it was not calibrated."""
        deviation = self.deviations.get(metric)
        return None if deviation is None else resolvable(deviation, pairs)


def fingerprint(machine: Mapping[str, Any] | None = None) -> str:
    """Return what tells this machine from others whose spread may be another."""
    told = env.describe() if machine is None else machine
    text = json.dumps([told.get(key) for key in _FINGERPRINT], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def file_here() -> Path:
    """Return where the calibration of this machine is kept."""
    return env.cache_folder() / "calibration" / f"{fingerprint()}.json"


def load(measure: Measure) -> dict[str, Calibrated]:
    """Return what is known of this machine by id of the case, of trials with as many steps."""
    return {key: told for key, told in _kept().items() if told.steps == measure.steps}


def save(found: Mapping[str, Calibrated]) -> Path:
    """Keep *found*, by id of the case, beside what is known of other cases; return the file.

    Raises:
        InfrastructureError: the file can't be written.
    """
    file = file_here()
    cases = {key: dataclasses.asdict(told) for key, told in (_kept() | dict(found)).items()}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps({"format": FORMAT, "cases": cases}))
    except OSError as error:
        raise InfrastructureError(f"{file}: can't be written: {error.strerror}") from error
    return file


def _kept() -> dict[str, Calibrated]:
    try:
        data = json.loads(file_here().read_text())
        # a cache: what can't be read is as good as not there, and is measured again
        return {key: _read(told) for key, told in data["cases"].items()} if data["format"] == FORMAT else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _read(told: Mapping[str, Any]) -> Calibrated:
    """Return what *told* says.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: it is nothing that ``save`` has written.
    """
    numbers = {str(name): float(value) for name, value in told["deviations"].items()}
    minutes = float(told["minutes_per_pair"])
    if not all(0 <= value < math.inf for value in (*numbers.values(), minutes)):
        raise ValueError("a spread or a time that is no number")
    return Calibrated(
        case=str(told["case"]),
        deviations=numbers,
        pairs=int(told["pairs"]),
        minutes_per_pair=minutes,
        steps=int(told["steps"]),
        when=str(told["when"]),
    )


def calibrated(result: Result, cases: Sequence[Case], measure: Measure) -> dict[str, Calibrated]:
    """Return what the A/A pairs of *result* have shown, by id of the case."""
    ids = {case.name: case.id for case in cases}
    found = {}
    for case in result.cases:
        noisy = {one.metric: one for one in case.findings if one.deviation is not None}
        if "tokens_per_s" in noisy:
            found[ids[case.case]] = Calibrated(
                case=case.case,
                deviations={name: float(one.deviation or 0.0) for name, one in noisy.items()},
                pairs=noisy["tokens_per_s"].pairs,
                minutes_per_pair=case.minutes_per_pair,
                steps=measure.steps,
                when=utc_now(),
            )
    return found


def refuse_blind(rules: Gate, cases: Sequence[Case], known: Mapping[str, Calibrated]) -> None:
    """Raise UsageError if a tolerance is below what this machine can resolve in the pairs allowed."""
    blind = []
    for case in cases:
        told = known.get(case.id)
        own = rules.of(case.label, case.name)
        for metric in NOISY:
            limit = getattr(own, metric)
            smallest = told.smallest(metric, rules.max_pairs) if told else None
            if told and limit is not None and smallest is not None and smallest > limit:
                blind.append(_sentence(case.name, metric, limit, smallest, rules.max_pairs, told))
    if blind:
        more = f" (and {len(blind) - 3} more)" if len(blind) > 3 else ""
        raise UsageError("; ".join(blind[:3]) + more)


def _sentence(name: str, metric: str, limit: float, smallest: float, pairs: int, told: Calibrated) -> str:
    needed = pairs_for(told.deviations[metric], limit)
    time = duration_text(needed * told.minutes_per_pair * 60)
    more = f", or gate.max_pairs to {needed} (some {time})" if needed <= MOST_PAIRS else ""
    return (
        f"gate.{metric} = {limit * 100:g}%: for {name} this machine resolves {smallest * 100:.1f}% in "
        f"{pairs} pairs (distbench calibrate, {told.when}); raise it{more}, or measure.steps"
    )

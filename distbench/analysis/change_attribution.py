"""Change of a step's time between two runs, split into the machine's part and the rest.

Both runs hold a probe. What the machine's own rates explain is told by ``distbench.prediction``; the rest is
the code's, or of what no rate is about. A split explains a change, and judges nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.readable_cases import unreadable_reason
from distbench.analysis.statistics.intervals import ConfidenceInterval
from distbench.core.case import Case
from distbench.core.errors import UsageError
from distbench.core.grouping import group_pairs
from distbench.core.text import join_limited, one_line
from distbench.prediction import PredictedValue
from distbench.prediction.machine_change import MachineChange, machine_change
from distbench.prediction.probed_rates import PROBE
from distbench.record import Record, records_of_kind

_SOFTWARE = {"backend", "cuda", "gpu_driver", "nccl", "packages", "python", "system", "torch", "variables"}
"""Facts of an environment that rates of a machine depend on, and that are no part of the machine."""


@dataclass(frozen=True)
class ChangeAttribution:
    """Ratio of two times of a step, after over before, and of it what the machine explains."""

    step: ConfidenceInterval
    """As measured; without an interval if its spread is unknown."""
    machine: MachineChange
    software: tuple[str, ...] = ()
    """Facts of the software that differ: rates that changed may be due to them."""

    @property
    def unexplained_ratio(self) -> float:
        """Ratio that is left of the measured one: of the code, and of what the probe does not measure."""
        return self.step.value / self.machine.step.value

    @property
    def rest(self) -> PredictedValue | None:
        """The same with an interval, as far as both intervals allow; None: the spread of steps is unknown."""
        step, machine = self.step, self.machine.step
        if step.half_log_width is None:
            return None
        return PredictedValue(self.unexplained_ratio, step.low / machine.high, step.high / machine.low)

    @property
    def has_unexplained_change(self) -> bool:
        """True if the machine does not explain all of the change."""
        rest = self.rest
        return rest is not None and not rest.low <= 1 <= rest.high

    def sentence(self) -> str:
        """The split in words, without the name of the case."""
        parts = [f"computation {_percents(self.machine.computation)}"]
        if self.machine.collectives:
            parts.append(f"collectives {_percents(self.machine.collectives)}")
        machine = "the machine"
        if self.software:
            machine += f" and its software ({join_limited([one_line(each) for each in self.software])})"
        return (
            f"of {_percent(self.step.value)} time per step {machine} explains "
            f"{_percents(self.machine.step)}: {', '.join(parts)}; {self._rest_clause()}"
        )

    def _rest_clause(self) -> str:
        rest = self.rest
        if rest is None:
            return f"{_percent(self.unexplained_ratio)} remains unexplained; its spread is unknown"
        if self.has_unexplained_change:
            return (
                f"the remaining {_percents(rest)} comes from the code or from what the probe does not measure"
            )
        return f"the remaining {_percents(rest)} may be noise"


Attribution = ChangeAttribution | str
"""A split, or the reason why there is none."""


def attribute_change(
    case: Case,
    step: ConfidenceInterval,
    before: Sequence[Record],
    after: Sequence[Record],
    environment: Iterable[str] = (),
) -> Attribution | None:
    """Split of a change of *case*, given the probes among the records of two runs.

    None if one of the runs has no probe. *step* is the ratio of its times, *environment* the facts that
    differ between the runs.
    """
    sides = [readable_probes(records) for records in (before, after)]
    if not all(sides):
        return None
    if reason := unreadable_reason(case):
        return reason
    try:
        machine = machine_change(case, *sides)
    except UsageError as error:
        return str(error)
    if isinstance(machine, str):
        return machine
    software = [name for name in environment if name.partition(".")[0] in _SOFTWARE]
    return ChangeAttribution(step, machine, tuple(software))


def readable_probes(records: Sequence[Record]) -> list[Record]:
    """Probes among *records* whose case this version can read."""
    probes = records_of_kind(records, PROBE)
    return [record for record in probes if not unreadable_reason(record.case)]


def attribution_json(split: Attribution | None) -> dict[str, Any] | None:
    """*split* as plain JSON types, with a reason in place of numbers; null: there are not two probes."""
    if split is None:
        return None
    names = ("step", "machine", "computation", "collectives", "rest")
    if isinstance(split, str):
        return {**dict.fromkeys(names), "software": [], "reason": split}
    machine, rest = split.machine, split.rest
    unknown = {"value": split.unexplained_ratio, "low": None, "high": None}
    return {
        "step": split.step.to_json(),
        "machine": _ends(machine.step),
        "computation": _ends(machine.computation),
        "collectives": _ends(machine.collectives) if machine.collectives else None,
        "rest": _ends(rest) if rest else unknown,
        "software": list(split.software),
        "reason": "",
    }


def absence_sentences(splits: Mapping[str, Attribution | None]) -> list[str]:
    """Sentence for each reason why cases, by their names, have no split although both runs have a probe."""
    reasons = group_pairs(
        (one_line(split), one_line(name)) for name, split in splits.items() if isinstance(split, str)
    )
    return [
        f"The change can't be attributed to machine or code: {reason} ({join_limited(names)})."
        for reason, names in reasons.items()
    ]


def _ends(value: PredictedValue) -> dict[str, float]:
    return {"value": value.value, "low": value.low, "high": value.high}


def _percents(value: PredictedValue) -> str:
    return f"{_percent(value.value)} ({_percent(value.low)} to {_percent(value.high)})"


def _percent(ratio: float) -> str:
    percent = (ratio - 1) * 100
    return f"{percent:+.1f}%" if math.isfinite(percent) and abs(percent) < 10_000 else f"{percent:+.0e}%"

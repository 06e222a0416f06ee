"""What the numbers say, in sentences; never more than the trials bear out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from distbench.analysis.summary import MEMORY, PENDING, THROUGHPUT, CaseSummary
from distbench.record import Status
from distbench.units import bytes_text, number_text


def sentences(cases: Sequence[CaseSummary]) -> list[str]:
    """Return what to know of a run: the fastest, the leanest, what to mind, what failed."""
    measured = [row for row in cases if row.measured]
    by_size = sorted(measured, key=lambda row: row.case.world_size)
    said = []
    for size, group in groupby(by_size, key=lambda row: row.case.world_size):
        rows = list(group)
        if len(rows) > 1:
            where = f"on {size} device{'s' if size > 1 else ''}"
            said += [_fastest(rows, where), _leanest(rows, where)]
    return [sentence for sentence in [*said, *_notes(measured), *_failures(cases)] if sentence]


def _fastest(rows: list[CaseSummary], where: str) -> str:
    ranked = sorted((r for r in rows if THROUGHPUT in r.values), key=lambda r: -r.values[THROUGHPUT].value)
    if len(ranked) < 2:
        return ""
    best, second = ranked[:2]
    first, other = best.values[THROUGHPUT], second.values[THROUGHPUT]
    told = f"Fastest {where}: {best.case.label}, {number_text(first.value)} tokens/s"
    if min(first.n, other.n) < 2:
        return f"{told}; from one trial each, so the lead over {second.case.label} may be noise."
    if first.overlaps(other):
        return f"{told}; {second.case.label} is within the spread of the trials."
    return f"{told}, {first.value / other.value:.2f} times {second.case.label}."


def _leanest(rows: list[CaseSummary], where: str) -> str:
    ranked = sorted((r for r in rows if MEMORY in r.values), key=lambda r: r.values[MEMORY].value)
    if len(ranked) < 2:
        return ""
    best, worst = ranked[0], ranked[-1]
    least, most = best.values[MEMORY].value, worst.values[MEMORY].value
    return (
        f"Leanest {where}: {best.case.label}, {bytes_text(least)} at its peak, "
        f"{least / most:.0%} of {worst.case.label}."
    )


def _notes(measured: Sequence[CaseSummary]) -> list[str]:
    notes = []
    if any("offload" in row.case.label and row.case.device == "cpu" for row in measured):
        notes.append("On a CPU, offload moves data from memory to memory: it saves nothing and costs a copy.")
    if measured and all(row.trials < 2 for row in measured):
        notes.append("One trial a case: no spread is known; measure.trials = 3 or more gives one.")
    return notes


def _failures(cases: Sequence[CaseSummary]) -> list[str]:
    said = []
    for row in cases:
        if row.status in (Status.MEASURED, Status.UNSUPPORTED, PENDING):
            continue
        said.append(f"Failed: {row.case.name}: {row.status}: {row.reason}")
    unsupported = [row for row in cases if row.status == Status.UNSUPPORTED]
    for reason in dict.fromkeys(row.reason for row in unsupported):
        names = ", ".join(row.case.name for row in unsupported if row.reason == reason)
        said.append(f"Unsupported here: {names}: {reason}.")
    return said

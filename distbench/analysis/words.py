"""What the numbers say, in sentences; never more than the trials bear out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from distbench.analysis.convergence import FAILING, Word
from distbench.analysis.diagnosis import diagnosis
from distbench.analysis.names import parts, shared_parts
from distbench.analysis.parity import marked_names
from distbench.analysis.summary import MEMORY, PENDING, THROUGHPUT, CaseSummary
from distbench.analysis.text import listed, one_line
from distbench.case import Case
from distbench.record import Status
from distbench.units import bytes_text, number_text

# an allocator rounds, and small buffers come and go: below that, memory is the same
_SAME_MEMORY = 0.01
_MOST_FAILURES = 20


def sentences(cases: Sequence[CaseSummary]) -> list[str]:
    """Return what to know of a run: the fastest, the leanest, what to mind, what failed."""
    return [*findings(cases), *failures(cases)]


def findings(cases: Sequence[CaseSummary]) -> list[str]:
    """Return the fastest and the leanest at each world size, and what to mind about the numbers."""
    measured = [row for row in cases if row.measured]
    sound = [row for row in cases if row.comparable]
    said = []
    for rows in _comparable(sound):
        group = _Group(rows, _where(rows, sound), marked_names(rows, cases))
        said += [_fastest(group), _leanest(group)]
    return [
        sentence
        for sentence in [*said, *diagnosis(cases), *converging(cases), *_notes(cases, measured)]
        if sentence
    ]


def failures(cases: Sequence[CaseSummary]) -> list[str]:
    """Return the cases that failed, wholly or in part, and those that can't run here, with why."""
    bad = [row for row in cases if row.failed and row.status != Status.UNSUPPORTED]
    said = [f"{failure_title(row)}: {one_line(row.reason)}" for row in bad[:_MOST_FAILURES]]
    if len(bad) > _MOST_FAILURES:
        said.append(f"{len(bad) - _MOST_FAILURES} more cases failed; the report has them all.")
    return [*said, *_not_converging(cases), *_unsupported(cases)]


def converging(cases: Sequence[CaseSummary]) -> list[str]:
    """Return which cases converge as their reference does, and of which that is not so clear."""
    return [
        f"Convergence: {len(rows)} of {sum(map(len, groups.values()))} cases: {word}{_why(rows)}."
        for groups in [_by_verdict(cases)]
        for word, rows in groups.items()
        if word not in FAILING
    ]


def _not_converging(cases: Sequence[CaseSummary]) -> list[str]:
    return [
        f"Convergence: {word}: {_listed_cases(rows)}; the first: {one_line(rows[0].convergence.why)}"
        for word, rows in _by_verdict(cases).items()
        if word in FAILING and rows[0].convergence
    ]


def _why(rows: Sequence[CaseSummary]) -> str:
    first = rows[0].convergence
    return f" ({_listed_cases(rows)}; the first: {one_line(first.why)})" if first and first.why else ""


def _listed_cases(rows: Sequence[CaseSummary]) -> str:
    return listed([one_line(row.case.name) for row in rows])


def _by_verdict(cases: Sequence[CaseSummary]) -> dict[Word, list[CaseSummary]]:
    found: dict[Word, list[CaseSummary]] = {}
    for row in cases:
        if row.convergence:
            found.setdefault(row.convergence.word, []).append(row)
    return found


def failure_title(row: CaseSummary) -> str:
    """Return what failed and how: ``Failed: ddp/ws2: crashed, rank 1 in time``."""
    name = one_line(row.case.name)
    if row.measured:
        return f"Failed in part: {name}"
    # most reasons begin with the rank themselves
    named = row.failure is None or row.failure.rank is None or row.reason.startswith("rank ")
    where = "" if named or row.failure is None else f", rank {row.failure.rank} in {row.failure.phase}"
    return f"Failed: {name}: {row.status}{where}"


@dataclass(frozen=True)
class _Group:
    """Cases that may be compared, and how to call them."""

    rows: list[CaseSummary]
    where: str
    names: dict[str, str]

    def name(self, row: CaseSummary) -> str:
        return self.names[row.case.id]

    def ranked(self, column: str, sign: int) -> list[CaseSummary]:
        return sorted(
            (row for row in self.rows if column in row.values),
            key=lambda row: sign * row.values[column].value,
        )


def _comparable(rows: list[CaseSummary]) -> list[list[CaseSummary]]:
    """Return the cases by what can't be compared: devices, precision, and what is trained on what."""
    found = _by(rows, lambda row: (row.case.world_size, _work(row.case)))
    return sorted((rows for rows in found if len(rows) > 1), key=lambda rows: rows[0].case.world_size)


def _work(case: Case) -> str:
    return repr((case.workload, case.data, case.precision, case.optimizer))


def _where(rows: list[CaseSummary], measured: list[CaseSummary]) -> str:
    size = rows[0].case.world_size
    where = f"on {size} device{'s' if size > 1 else ''}"
    others = [row for row in measured if row.case.world_size == size]
    if len(others) == len(rows):
        return where
    shared = shared_parts([row.case for row in rows])
    told = [part for part in shared if any(part not in parts(row.case) for row in others)]
    return f"{where} with {', '.join(told)}" if told else where


def _fastest(group: _Group) -> str:
    ranked = group.ranked(THROUGHPUT, -1)
    if len(ranked) < 2 or not ranked[0].values[THROUGHPUT].value:
        return ""
    best, second = ranked[:2]
    first, other = best.values[THROUGHPUT], second.values[THROUGHPUT]
    told = f"Fastest {group.where}: {group.name(best)}, {number_text(first.value)} tokens/s"
    if min(first.n, other.n) < 2:
        return f"{told}; from one trial, so its lead over {group.name(second)} may be noise."
    tied = [row for row in ranked[1:] if first.overlaps(row.values[THROUGHPUT])]
    if tied:
        names = listed([group.name(row) for row in tied], most=3)
        verb = "is" if len(tied) == 1 else "are"
        return f"{told}; {names} {verb} within the spread of the trials, so it may be noise."
    if not other.value:
        return f"{told}."
    return f"{told}, {first.value / other.value:.2f} times {group.name(second)}."


def _leanest(group: _Group) -> str:
    ranked = group.ranked(MEMORY, 1)
    if len(ranked) < 2:
        return ""
    least, most = ranked[0].values[MEMORY], ranked[-1].values[MEMORY]
    limit = least.high * (1 + _SAME_MEMORY)
    alike = [group.name(row) for row in ranked if row.values[MEMORY].low <= limit]
    peak = f"{bytes_text(least.value)} at the peak of a rank"
    if len(alike) == len(ranked):
        return f"Leanest {group.where}: no difference in memory beyond 1 % or the spread; {peak}."
    others = f" ({listed(alike[1:], most=3)} alike)" if len(alike) > 1 else ""
    part = f"{least.value / most.value:.0%} of {group.name(ranked[-1])}"
    return f"Leanest {group.where}: {alike[0]}{others}, {peak}, {part}."


def _notes(cases: Sequence[CaseSummary], measured: Sequence[CaseSummary]) -> list[str]:
    notes = _apart(cases) + _disturbed(measured)
    if any(_offloads_in_vain(row) for row in measured):
        notes.append(
            "On a CPU machine, offload to the CPU moves data from memory to memory: it can save none here."
        )
    if measured and all(row.trials < 2 for row in measured):
        notes.append("One trial a case: no spread is known; measure.trials = 3 or more gives one.")
    if pending := sum(row.status == PENDING for row in cases):
        notes.append(f"{pending} of {len(cases)} cases have no record yet.")
    return notes


def _apart(cases: Sequence[CaseSummary]) -> list[str]:
    names = [one_line(row.case.name) for row in cases if row.differs]
    return [f"Not the same training as the reference, so not compared: {listed(names)}."] if names else []


def _disturbed(measured: Sequence[CaseSummary]) -> list[str]:
    """Return what is kept out of the comparisons, and the first reason: they are much alike."""
    said = []
    if wholly := [row for row in measured if row.degraded]:
        names = listed([one_line(row.case.name) for row in wholly])
        said.append(
            f"Disturbed while measured (*), so not compared: {names}; in the first, "
            f"{one_line(wholly[0].degraded)}."
        )
    if partly := [row for row in measured if row.degraded_trials and not row.degraded]:
        left_out = ", ".join(
            f"{row.degraded_trials} of {row.trials} of {one_line(row.case.name)}" for row in partly[:6]
        )
        more = f" and of {len(partly) - 6} more cases" if len(partly) > 6 else ""
        said.append(
            f"Disturbed trials that don't count, as others of their cases were sound: {left_out}{more}."
        )
    return said


def _offloads_in_vain(row: CaseSummary) -> bool:
    label = row.case.label
    return row.case.device == "cpu" and "offload" in label and "nvme" not in label


def _unsupported(cases: Sequence[CaseSummary]) -> list[str]:
    rows = [row for row in cases if row.status == Status.UNSUPPORTED]
    return [
        f"Unsupported here: {listed([one_line(row.case.name) for row in same])}: {one_line(same[0].reason)}"
        for same in _by(rows, lambda row: row.reason)
    ]


def _by(rows: Sequence[CaseSummary], key: Callable[[CaseSummary], Hashable]) -> list[list[CaseSummary]]:
    found: dict[Hashable, list[CaseSummary]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return list(found.values())

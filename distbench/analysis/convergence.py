"""Whether a case converges as its reference does, as MLPerf's reference convergence points have it.

The trainings of the reference (one process, the same global batch, at least twice as many seeds)
are the distribution. Steps to the target and the value at the end are each tested one-sided at
p = 0.05 by Student's t with one variance for both, as the checker of MLPerf does (mlcommons/logging,
rcp_checker.py): the hypothesis is that both were drawn from the same distribution, and then so is the
variance. It rejects what is faster than the reference; here worse fails too, and better is flagged.
Not taken over: MLPerf drops the fastest and the slowest training of each side, which few have to spare.

The first seeds of the reference are those of the case. Two trainings of one seed differ by rounding
if the strategy is right, so an honest case is called worse less often than p says: if the seeds are
half of the reference's, the difference of the means varies by a third of what the test assumes.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from distbench.case import Case
from distbench.record import Record, Row, Status

P_VALUE = 0.05
"""One-sided level of each of the tests."""

Word = Literal[
    "converges as the reference",
    "worse",
    "suspiciously better",
    "did not reach the target",
    "ranks drifted apart",
    "broke down",
    "inconclusive",
]

FAILING: tuple[Word, ...] = ("worse", "did not reach the target", "ranks drifted apart", "broke down")
"""With these a run ends with exit code 1."""


@dataclass(frozen=True)
class Merit:
    """The figure of merit of a group of trainings, and the value to reach."""

    name: str
    unit: str
    better: str
    target: float
    doc: str = ""

    def reached(self, value: float) -> bool:
        """Return whether *value* is the target or better."""
        return value >= self.target if self.better == "higher" else value <= self.target


@dataclass(frozen=True)
class Training:
    """One training of one seed that ran to its end."""

    seed: int
    curve: Sequence[Row]
    """A row a step: step, samples, tokens, seconds, loss, value and grad_norm (None: not looked at)."""
    reached: Row | None
    """The first row whose value is the target or better."""

    @property
    def final(self) -> float:
        """The held-out value after the last step."""
        return float(self.curve[-1]["value"])

    @property
    def step_s(self) -> float:
        """The median seconds of a step: the first ones make what all later ones use again."""
        ends = [float(row["seconds"]) for row in self.curve]
        return statistics.median(end - begin for begin, end in itertools.pairwise([0.0, *ends]))


@dataclass(frozen=True)
class Group:
    """The trainings of a case, or of a reference."""

    case: Case
    """With the seed of the first training."""
    trainings: tuple[Training, ...]
    broken: tuple[str, ...] = ()
    """Why the others did not run to their end."""
    findings: tuple[Row, ...] = ()
    """What was seen of their health: seed, step, rank, module, kind and text."""

    def to_target(self, key: str) -> list[float]:
        """Return the steps, samples or seconds (*key*) at which each training reached the target."""
        return [float(each.reached[key]) for each in self.trainings if each.reached]

    @property
    def finals(self) -> list[float]:
        """The value of each training at its end."""
        return [each.final for each in self.trainings]


@dataclass(frozen=True)
class Compared:
    """The mean of a case beside that of its reference."""

    mean: float
    reference: float
    p_worse: float
    """Chance of a mean as bad or worse than the case's, were it drawn as the reference's are."""
    p_better: float

    @property
    def is_worse(self) -> bool:
        """Whether that is too rare to be chance."""
        return self.p_worse < P_VALUE

    @property
    def is_better(self) -> bool:
        """Whether being as good or better is."""
        return self.p_better < P_VALUE


@dataclass(frozen=True)
class Convergence:
    """How a case trains beside its reference."""

    case_id: str
    group: Group
    reference: Group
    merit: Merit
    word: Word
    why: str
    steps: Compared | None = None
    """Steps to the target; None where not both reached it in every training."""
    final: Compared | None = None


def convergences(records: Iterable[Record]) -> dict[str, Convergence]:
    """Return how each case that was trained to a target did, by the id of the case."""
    grouped: dict[str, list[Record]] = {}
    for record in records:
        if record.job.kind == "converge":
            grouped.setdefault(str(record.job.options["of"]), []).append(record)
    found = {}
    for case_id, mine in grouped.items():
        asked = mine[0].job.options
        if asked.get("role") == "case":
            merit = Merit(
                **{key: asked["merit"][key] for key in ("name", "unit", "better", "doc")},
                target=asked["target"],
            )
            theirs = grouped.get(asked["reference"], [])
            found[case_id] = judge(
                case_id, _group(mine, merit), _group(theirs or mine[:0], merit, mine), merit, asked
            )
    return found


def judge(case_id: str, group: Group, reference: Group, merit: Merit, asked: dict[str, Any]) -> Convergence:
    """Return the verdict on *group*, of which the job asked for ``seeds`` trainings in ``asked``."""
    final = steps = None
    if group.trainings and len(reference.trainings) > 1:
        final = compared(
            group.finals, reference.finals, worse="less" if merit.better == "higher" else "greater"
        )
        if all(each.reached for each in (*group.trainings, *reference.trainings)):
            steps = compared(group.to_target("step"), reference.to_target("step"), least=asked["eval_every"])
    word, why = _verdict(group, reference, merit, asked, steps, final)
    return Convergence(case_id, group, reference, merit, word, why, steps, final)


def compared(
    mine: Sequence[float], theirs: Sequence[float], *, worse: str = "greater", least: float = 0.0
) -> Compared:
    """Return the one-sided t-tests of *mine* against *theirs* (two values at least).

    *worse* is the direction that is: ``greater`` or ``less``. Differences of the means up to *least*
    are no finding, whatever their chance: that is as fine as the values are known.
    """
    # it takes as long to import as all else together
    from scipy import stats

    mean, other = statistics.fmean(mine), statistics.fmean(theirs)
    degrees = len(mine) + len(theirs) - 2
    squares = sum((x - mean) ** 2 for x in mine) + sum((x - other) ** 2 for x in theirs)
    error = math.sqrt(squares / degrees * (1 / len(mine) + 1 / len(theirs)))
    apart = (mean - other) if worse == "greater" else (other - mean)
    if abs(apart) <= max(least, 1e-12 * abs(other)):
        return Compared(mean, other, 0.5, 0.5)
    if not error:
        return Compared(mean, other, float(apart < 0), float(apart > 0))
    p_worse = float(stats.t.sf(apart / error, degrees))
    return Compared(mean, other, p_worse, 1 - p_worse)


def _verdict(
    group: Group,
    reference: Group,
    merit: Merit,
    asked: dict[str, Any],
    steps: Compared | None,
    final: Compared | None,
) -> tuple[Word, str]:
    if group.broken:
        count = len(group.broken) + len(group.trainings)
        return "broke down", f"{len(group.broken)} of {count} trainings: {group.broken[0]}"
    if apart := [row for row in group.findings if row["kind"] == "ranks apart"]:
        row = apart[0]
        return "ranks drifted apart", f"rank {row['rank']} at step {row['step']}: {row['text']}"
    missed = [each for each in group.trainings if not each.reached]
    unreached = [each for each in reference.trainings if not each.reached]
    if missed and not unreached and reference.trainings:
        return "did not reach the target", _missed(missed, group, merit)
    if why := _few(group, reference, asked):
        return "inconclusive", why
    tests = {"steps to the target": steps, "value at the end": final}
    known = {name: test for name, test in tests.items() if test}
    if told := [_told(name, test) for name, test in known.items() if test.is_worse]:
        return "worse", "; ".join(told)
    if told := [_told(name, test) for name, test in known.items() if test.is_better]:
        return "suspiciously better", "; ".join(told)
    if unreached:
        return "inconclusive", (
            f"{len(unreached)} of {len(reference.trainings)} trainings of the reference did not reach the "
            "target either: it is too far for so few steps"
        )
    return "converges as the reference", ""


def _few(group: Group, reference: Group, asked: dict[str, Any]) -> str:
    wanted = 2 * asked["seeds"]
    if len(group.trainings) < max(asked["seeds"], 2):
        return f"{len(group.trainings)} trainings tell nothing of their spread; 2 at least (converge.seeds)"
    if len(reference.trainings) < wanted:
        why = f": {reference.broken[0]}" if reference.broken else ""
        return f"the reference has {len(reference.trainings)} of {wanted} trainings{why}"
    return ""


def _missed(missed: Sequence[Training], group: Group, merit: Merit) -> str:
    best = (max if merit.better == "higher" else min)(each.final for each in missed)
    return f"{len(missed)} of {len(group.trainings)} trainings; they ended at {best:.4g} at best"


def _told(name: str, test: Compared) -> str:
    p = min(test.p_worse, test.p_better)
    return f"{name} {test.mean:.4g}, the reference's {test.reference:.4g} (p = {p:.2g})"


def _group(records: Sequence[Record], merit: Merit, instead: Sequence[Record] = ()) -> Group:
    ordered = sorted(records, key=lambda record: record.round)
    done = [record for record in ordered if record.status is Status.MEASURED]
    lost = [record for record in ordered if record.status not in (Status.MEASURED, Status.CANCELLED)]
    first = (ordered or list(instead))[0]
    return Group(
        case=first.case,
        trainings=tuple(_training(record, merit) for record in done),
        broken=tuple(f"seed {record.case.seed}: {record.status}: {record.reason}" for record in lost),
        findings=tuple(
            {**row, "seed": record.case.seed}
            for record in ordered
            for row in record.tables.get("converge_findings", [])
        ),
    )


def _training(record: Record, merit: Merit) -> Training:
    curve = record.tables["converge_curve"]
    evaluated = (row for row in curve if row["value"] is not None)
    reached = next((row for row in evaluated if merit.reached(row["value"])), None)
    return Training(record.case.seed, curve, reached)

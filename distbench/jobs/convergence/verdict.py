"""Whether a case converges as its reference does, as MLPerf's reference convergence points have it.

The trainings of the reference (one process, the same global batch, at least twice as many seeds)
are the reference distribution. Steps to the target and the value at the end are each tested one-sidedly at
p = 0.05 by Student's t with one variance for both, as MLPerf's checker does (mlcommons/logging,
rcp_checker.py): the hypothesis is that both were drawn from the same distribution, with the same
variance. MLPerf rejects what is faster than the reference; here worse fails too, and better is flagged.
MLPerf also drops the fastest and the slowest training of each side; few runs have enough to do that.

The first seeds of the reference are those of the case. Two trainings of one seed differ by rounding
if the strategy is right, so a correct case is called worse less often than p says: if the seeds are
half of the reference's, the difference of the means varies by a third of what the test assumes.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.verdict import INCONCLUSIVE, Gravity, Verdict
from distbench.case import Case
from distbench.grouping import grouped
from distbench.record import Record, Row, Status

P_VALUE = 0.05
"""One-sided level of each of the tests."""

_WORDS: dict[str, tuple[Gravity, str]] = {
    "converges as the reference": ("ok", "matches the reference"),
    "suspiciously better": ("ok", "suspiciously better"),
    INCONCLUSIVE: ("unknown", INCONCLUSIVE),
    "worse": ("bad", "worse"),
    "did not reach the target": ("bad", "did not reach the target"),
    "ranks drifted apart": ("bad", "ranks diverged"),
    "broke down": ("bad", "training failed"),
}
"""Word of a verdict -> its gravity, and how people read it."""


@dataclass(frozen=True)
class Target:
    """Figure of merit of a group of trainings, and the value to reach."""

    name: str
    unit: str
    better: str
    target: float
    doc: str = ""

    def reached(self, value: float) -> bool:
        """Whether *value* is the target or better."""
        return value >= self.target if self.better == "higher" else value <= self.target


@dataclass(frozen=True)
class Training:
    """A finished training with one seed."""

    curve: Sequence[Row]
    """A row per step: step, samples, tokens, seconds, loss, value and grad_norm (None: not evaluated)."""
    reached: Row | None
    """The first row whose value is the target or better."""

    @property
    def final(self) -> float:
        """The held-out value after the last step."""
        return float(self.curve[-1]["value"])

    @property
    def step_s(self) -> float:
        """Median seconds of a step: the first ones build what later ones reuse."""
        ends = [float(row["seconds"]) for row in self.curve]
        return statistics.median(end - begin for begin, end in itertools.pairwise([0.0, *ends]))


@dataclass(frozen=True)
class Group:
    """The trainings of a case, or of a reference."""

    case: Case
    """With the seed of the first training."""
    trainings: tuple[Training, ...]
    broken: tuple[str, ...] = ()
    """Why the others did not finish."""
    findings: tuple[Row, ...] = ()
    """Findings on their health: seed, step, rank, module, kind and text."""

    def to_target(self, key: str) -> list[float]:
        """Steps, samples or seconds (*key*) at which each training reached the target."""
        return [float(training.reached[key]) for training in self.trainings if training.reached]

    @property
    def finals(self) -> list[float]:
        """Value of each training at its end."""
        return [training.final for training in self.trainings]


@dataclass(frozen=True)
class Compared:
    """Mean of a case and of its reference."""

    mean: float
    reference: float
    p_worse: float
    """Chance of a mean as bad as the case's or worse, if drawn from the reference's distribution."""
    p_better: float

    @property
    def is_worse(self) -> bool:
        """Whether the case is worse beyond chance."""
        return self.p_worse < P_VALUE

    @property
    def is_better(self) -> bool:
        """Whether the case is better beyond chance."""
        return self.p_better < P_VALUE


@dataclass(frozen=True)
class Convergence:
    """How a case trains next to its reference."""

    case_id: str
    group: Group
    reference: Group
    merit: Target
    word: str
    why: str
    """What the word rests on; empty if the case matches its reference."""
    steps: Compared | None = None
    """Steps to the target; None where not both reached it in every training."""
    final: Compared | None = None

    @property
    def verdict(self) -> Verdict:
        """What this comes to."""
        gravity, shown = _WORDS[self.word]
        sentence = f"{shown}: {self.why}" if self.why else shown
        return Verdict("convergence", self.word, gravity, sentence, self)

    def to_json(self) -> dict[str, Any]:
        """The trainings, the tests and what was found of their health."""
        return {
            "why": self.why,
            "merit": dataclasses.asdict(self.merit),
            "trainings": len(self.group.trainings),
            "steps_to_target": self.group.to_target("step"),
            "samples_to_target": self.group.to_target("samples"),
            "seconds_to_target": self.group.to_target("seconds"),
            "final": self.group.finals,
            "steps": dataclasses.asdict(self.steps) if self.steps else None,
            "at_the_end": dataclasses.asdict(self.final) if self.final else None,
            "findings": [dict(row) for row in self.group.findings],
        }


def convergences(records: Iterable[Record]) -> dict[str, Convergence]:
    """Convergence of each case that was trained to a target, by case id."""
    by_case = grouped(records, lambda record: record.job.options.of)
    return {
        case_id: _convergence(case_id, mine, by_case)
        for case_id, mine in by_case.items()
        if mine[0].job.options.role == "case"
    }


def _convergence(case_id: str, mine: list[Record], by_case: dict[str, list[Record]]) -> Convergence:
    asked: Any = mine[0].job.options
    of_merit = {key: asked.merit[key] for key in ("name", "unit", "better", "doc")}
    merit = Target(**of_merit, target=asked.target)
    group, reference = _group(mine, merit, mine), _group(by_case.get(asked.reference, []), merit, mine)
    final = steps = None
    if group.trainings and len(reference.trainings) > 1:
        final = compared(
            group.finals, reference.finals, worse="less" if merit.better == "higher" else "greater"
        )
        if all(each.reached for each in (*group.trainings, *reference.trainings)):
            steps = compared(group.to_target("step"), reference.to_target("step"), least=asked.eval_every)
    tests = {"steps to the target": steps, "value at the end": final}
    word, why = _verdict(group, reference, merit, asked, tests)
    return Convergence(case_id, group, reference, merit, word, why, steps, final)


def compared(
    mine: Sequence[float], theirs: Sequence[float], *, worse: str = "greater", least: float = 0.0
) -> Compared:
    """One-sided t-tests of *mine* against *theirs* (two values at least).

    *worse* is the bad direction: ``greater`` or ``less``. Differences of the means up to *least* are not
    significant, whatever their chance: the values are not known more precisely.
    """
    # importing it takes as long as everything else together
    from scipy import stats

    mean, other = statistics.fmean(mine), statistics.fmean(theirs)
    if abs(mean - other) <= max(least, 1e-12 * abs(other)):
        return Compared(mean, other, 0.5, 0.5)
    # from the moments, for ttest_ind warns of values that hardly scatter, as those of equal trainings
    sides = (mean, _deviation(mine), len(mine), other, _deviation(theirs), len(theirs))
    p_worse = float(stats.ttest_ind_from_stats(*sides, alternative=worse).pvalue)
    return Compared(mean, other, p_worse, 1 - p_worse)


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _verdict(
    group: Group, reference: Group, merit: Target, asked: Any, tests: dict[str, Compared | None]
) -> tuple[str, str]:
    if group.broken:
        count = len(group.broken) + len(group.trainings)
        return "broke down", f"{len(group.broken)} of {count} trainings: {group.broken[0]}"
    if row := next((row for row in group.findings if row["kind"] == "ranks apart"), None):
        return "ranks drifted apart", f"rank {row['rank']} at step {row['step']}: {row['text']}"
    missed = [each for each in group.trainings if not each.reached]
    unreached = [each for each in reference.trainings if not each.reached]
    if missed and not unreached and reference.trainings:
        return "did not reach the target", _missed(missed, group, merit)
    if why := _few(group, reference, asked):
        return INCONCLUSIVE, why
    known = {name: test for name, test in tests.items() if test}
    if worse := [_test_text(name, test) for name, test in known.items() if test.is_worse]:
        return "worse", "; ".join(worse)
    if better := [_test_text(name, test) for name, test in known.items() if test.is_better]:
        return "suspiciously better", "; ".join(better)
    if unreached:
        return INCONCLUSIVE, (
            f"{len(unreached)} of {len(reference.trainings)} trainings of the reference did not reach the "
            "target either: too few steps (converge.max_steps) for this target"
        )
    return "converges as the reference", ""


def _few(group: Group, reference: Group, asked: Any) -> str:
    wanted = 2 * asked.seeds
    if len(group.trainings) < max(asked.seeds, 2):
        return f"{len(group.trainings)} trainings are too few; at least 2 are needed (converge.seeds)"
    if len(reference.trainings) < wanted:
        why = f": {reference.broken[0]}" if reference.broken else ""
        return f"the reference has {len(reference.trainings)} of {wanted} trainings{why}"
    return ""


def _missed(missed: Sequence[Training], group: Group, merit: Target) -> str:
    best = (max if merit.better == "higher" else min)(each.final for each in missed)
    return f"{len(missed)} of {len(group.trainings)} trainings; best final value {best:.4g}"


def _test_text(name: str, test: Compared) -> str:
    p = min(test.p_worse, test.p_better)
    return f"{name}: {test.mean:.4g}, reference {test.reference:.4g} (p = {p:.2g})"


def _group(records: Sequence[Record], merit: Target, instead: Sequence[Record]) -> Group:
    """The trainings in *records*; without any, none of the case of *instead*."""
    ordered = sorted(records, key=lambda record: record.round)
    done = [record for record in ordered if record.status is Status.MEASURED]
    lost = [record for record in ordered if record.status not in (Status.MEASURED, Status.CANCELLED)]
    return Group(
        case=(ordered or instead)[0].case,
        trainings=tuple(_training(record, merit) for record in done),
        broken=tuple(f"seed {record.case.seed}: {record.status}: {record.reason}" for record in lost),
        findings=tuple(
            {**row, "seed": record.case.seed}
            for record in ordered
            for row in record.tables.get("converge_findings", [])
        ),
    )


def _training(record: Record, merit: Target) -> Training:
    curve = record.tables["converge_curve"]
    evaluated = (row for row in curve if row["value"] is not None)
    reached = next((row for row in evaluated if merit.reached(row["value"])), None)
    return Training(curve, reached)

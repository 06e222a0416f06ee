"""Judge convergence against a reference, after MLPerf's reference convergence points.

The trainings of the reference (one process, the same global batch, at least twice as many seeds)
are the reference distribution. Steps to the target and final values are each compared seed by
seed (``arms``), with one-sided tests, and missed targets are counted by Fisher's exact test. MLPerf's
checker (mlcommons/logging, rcp_checker.py) tests one submission; a run has many cases, so the p-values are
adjusted for the number of all its tests (Holm), and 5% is the probability that any case that trains like
its reference is reported as worse. MLPerf rejects results that are faster than the reference; here worse
fails too, and better is flagged.

Finding no difference proves little if the tests have little power: a case converges like its reference only
if 95% intervals exclude a slowdown and a final value that matter (``converge.max_slowdown``,
``converge.max_worse``): two one-sided tests of equivalence (D. J. Schuirmann 1987, J. Pharmacokinetics and
Biopharmaceutics 15).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from distbench.analysis.job_results import INCONCLUSIVE, Gravity, Verdict
from distbench.core.grouping import group_by
from distbench.jobs.convergence.comparison import (
    MIN_DIFFERENCE,
    P_VALUE,
    CaseTests,
    ConvergenceComparison,
    MeanTest,
    run_tests,
)
from distbench.jobs.convergence.trainings import Target, TrainingGroup
from distbench.record import Record

AS_REFERENCE = "converges as the reference"
_STEPS, _FINAL = "steps to the target", "value at the end"

_WORDS: dict[str, tuple[Gravity, str]] = {
    AS_REFERENCE: ("ok", "matches the reference"),
    "suspiciously better": ("ok", "suspiciously better"),
    INCONCLUSIVE: ("unknown", INCONCLUSIVE),
    "worse": ("bad", "worse"),
    "did not reach the target": ("bad", "did not reach the target"),
    "ranks drifted apart": ("bad", "ranks diverged"),
    "broke down": ("bad", "training failed"),
}
"""Word of a verdict -> its gravity, and the text shown to users."""


@dataclass(frozen=True)
class ConvergenceEvidence:
    """Evidence for the convergence of a case relative to its reference."""

    case_id: str
    group: TrainingGroup
    reference: TrainingGroup
    merit: Target
    word: str
    why: str
    """Reason for the word."""
    steps: MeanTest | None = None
    """Steps to the target; None unless both reached it in every training."""
    final: MeanTest | None = None

    @property
    def verdict(self) -> Verdict:
        """Verdict on the case."""
        gravity, shown = _WORDS[self.word]
        extent = None
        if self.steps and self.word == AS_REFERENCE:
            extent = max(self.steps.most, 0.0), "more steps to the target not ruled out"
        return Verdict(
            "convergence",
            self.word,
            gravity,
            f"{shown}: {self.why}",
            self,
            confirms_quality=gravity == "ok",
            confirms_by_outcome=True,
            extent=extent,
        )

    def to_json(self) -> dict[str, Any]:
        """Trainings, tests and findings about training health."""
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


def evidence_by_case(records: Iterable[Record]) -> dict[str, ConvergenceEvidence]:
    """Judge all cases that were trained to a target together, as tests are adjusted; by case id."""
    by_case = group_by(records, lambda record: record.job.options.of)
    sides = [
        ConvergenceComparison(case_id, mine, by_case)
        for case_id, mine in by_case.items()
        if mine[0].job.options.role == "case"
    ]
    tests = run_tests(sides)
    return {each.case_id: _evidence(each, tests[each.case_id]) for each in sides}


def _evidence(side: ConvergenceComparison, tests: CaseTests) -> ConvergenceEvidence:
    word, why = side.certain_verdict
    if not word:
        word, why = (INCONCLUSIVE, side.insufficient_data) if side.insufficient_data else _judge(side, tests)
    return ConvergenceEvidence(
        side.case_id, side.group, side.reference, side.merit, word, why, tests.steps, tests.final
    )


def _judge(side: ConvergenceComparison, tests: CaseTests) -> tuple[str, str]:
    steps, final = tests.steps, tests.final
    known = {name: test for name, test in ((_STEPS, steps), (_FINAL, final)) if test}
    worse = [_test_text(name, test) for name, test in known.items() if test.is_worse]
    better = [_test_text(name, test) for name, test in known.items() if test.is_better]
    if tests.p_missed is not None and (worse or tests.p_missed < P_VALUE):
        return "did not reach the target", "; ".join([_missed_target_text(side, tests.p_missed), *worse])
    if worse:
        return "worse", "; ".join(worse)
    if better:
        return "suspiciously better", "; ".join(better)
    return _judge_power(side, tests)


def _judge_power(side: ConvergenceComparison, tests: CaseTests) -> tuple[str, str]:
    """Judge a case of which nothing was found to be worse, by what its intervals exclude."""
    if side.reference_misses:
        return INCONCLUSIVE, (
            f"{side.reference_misses} of {len(side.reference.trainings)} trainings of the reference did not "
            "reach the target either: too few steps (converge.max_steps) for this target"
        )
    if tests.p_missed is not None:
        return INCONCLUSIVE, (
            f"{_missed_target_text(side, tests.p_missed)}: not significant; raise converge.seeds or "
            "converge.max_steps"
        )
    if tests.steps is None or tests.final is None:
        return INCONCLUSIVE, "no seed is shared with the reference, so nothing can be compared"
    slower, worse, asked = tests.steps.most, tests.final.most, side.options
    so_far = f"{len(side.group.trainings)} seeds show no disadvantage, but can't exclude"
    if slower > asked.max_slowdown:
        return INCONCLUSIVE, (
            f"{so_far} {slower:.0%} more steps to the target (limit: converge.max_slowdown = "
            f"{asked.max_slowdown:g}); raise converge.seeds or lower converge.eval_every"
        )
    if worse > asked.max_worse:
        return INCONCLUSIVE, (
            f"{so_far} a final value that is {worse:.1%} worse (limit: converge.max_worse = "
            f"{asked.max_worse:g}); raise converge.seeds"
        )
    return AS_REFERENCE, (
        f"at most {max(slower, MIN_DIFFERENCE):.1%} more steps to the target, and a final value at most "
        f"{max(worse, MIN_DIFFERENCE):.1%} worse (95% confidence)"
    )


def _missed_target_text(side: ConvergenceComparison, chance: float) -> str:
    best = (max if side.merit.better == "higher" else min)(each.final for each in side.missed_trainings)
    return (
        f"{len(side.missed_trainings)} of {len(side.group.trainings)} trainings, of the reference "
        f"{side.reference_misses} of {len(side.reference.trainings)} (p = {chance:.2g}); best final value "
        f"{best:.4g}"
    )


def _test_text(name: str, test: MeanTest) -> str:
    p = min(test.p_worse, test.p_better)
    return f"{name}: {test.mean:.4g}, reference {test.reference:.4g} (p = {p:.2g})"

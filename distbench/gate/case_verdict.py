"""Combine the findings on a case into a verdict, with the likely cause of a slowdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.comparison import setting_differences
from distbench.analysis.job_results import INCONCLUSIVE, job_results
from distbench.core.text import join_limited, one_line
from distbench.core.units import format_bytes, format_count, format_duration, format_number
from distbench.gate import losses
from distbench.gate.metric_rules import counted_findings, metric_findings
from distbench.gate.pairs import RecordPairs, median_of_arm
from distbench.gate.series import CaseTrack
from distbench.gate.verdicts import (
    FAILING_VERDICTS,
    CaseVerdict,
    GateVerdict,
    MetricFinding,
    confirm,
    mark_unconfirmed,
)
from distbench.gate.wording import percent_change
from distbench.record import Record, Status
from distbench.suite.gate import GateRules

if TYPE_CHECKING:
    import numpy as np

ArmSummaries = tuple[dict[str, CaseSummary], dict[str, CaseSummary]]
"""Summaries of the baseline's and the candidate's cases, by case id."""

_PROFILE_PHASES = {
    "profile_exposed_comm_s": "exposed communication",
    "profile_forward_s": "the forward pass",
    "profile_backward_s": "the backward pass",
    "profile_optimizer_s": "the optimizer step",
    "profile_data_s": "loading data",
    "profile_other_s": "work outside these phases",
    "profile_idle_s": "idle time (nothing runs)",
}
_MIN_SHARE = 0.3
"""Smallest share of the added step time for which a phase is named."""
_MIN_IMBALANCE_RISE = 0.02
"""Smallest reported rise of the imbalance: work of the slowest rank over the mean."""


def track_findings(track: CaseTrack, rules: GateRules) -> list[MetricFinding]:
    """Findings on the pairs of *track*, or on the reason why it has none."""
    if track.failure:
        return [_failure_finding(*track.failure)]
    if not track.pairs:
        return [MetricFinding("trial", "inconclusive", "no pair of trials finished within gate.minutes")]
    case = track.slot.candidate
    own = rules.tolerances_for(case.label, case.name)
    if track.unchanged:
        why = f"times and memory are not compared: {track.unchanged}"
        return [MetricFinding("trial", "pass", why, pairs=1), *counted_findings(track.pairs, own)]
    return metric_findings(track.case_pairs(), rules, own)


def pairs_of_both_series(track: CaseTrack, repeat: CaseTrack | None) -> RecordPairs:
    """Pairs of *track* and of its *repeat* in the second series, if there was one."""
    return [*track.pairs, *(repeat.pairs if repeat else [])]


def case_verdict(
    track: CaseTrack,
    repeat: CaseTrack | None,
    summaries: ArmSummaries,
    rules: GateRules,
    *,
    perturbed: Sequence[np.ndarray] = (),
    launches: MetricFinding | None = None,
    confirms: bool,
) -> CaseVerdict:
    """Verdict on the case of *track*.

    Args:
        repeat: Its track in the second series, if it was flagged, or its launches failed.
        summaries: Data of both runs, for differing settings and required checks.
        perturbed: Losses (steps,) of the baseline's trainings from perturbed weights, if any were made.
        launches: Finding on its launches, if any failed.
        confirms: True if a regression or an improvement needs a second series to stand.
    """
    case = track.slot.candidate
    own = track_findings(track, rules)
    first: tuple[MetricFinding, ...] = ()
    if repeat is not None and (repeat.pairs or repeat.failure):
        first, own = tuple(own), confirm(own, track_findings(repeat, rules))
    elif confirms:
        own = [mark_unconfirmed(finding) for finding in own]
    before, after = summaries[0].get(track.slot.baseline.id), summaries[1].get(case.id)
    pairs = pairs_of_both_series(track, repeat)
    work, notes = setting_differences(before, after) if before and after else ("", ())
    own = (
        [MetricFinding("trial", "incomparable", work)]
        if work
        else _add_loss_findings(own, losses.loss_findings(pairs, rules.loss, perturbed))
    )
    own += [launches] if launches and not _any_failed(track, repeat) else []
    own += required_findings(after, rules)
    # the base of the series that the pace finding comes from: a confirmed loss is from the second
    base = (
        repeat.single_device
        if repeat and repeat.single_device and repeat.single_device.pairs
        else track.single_device
    )
    return CaseVerdict(
        case=case.name,
        label=case.label,
        world_size=case.world_size,
        findings=tuple(own),
        cause=likely_cause(
            _throughput_finding(own),
            _throughput_finding(track_findings(base, rules)) if base else None,
            pairs,
        ),
        notes=(*notes, *_noise_note(pairs)),
        minutes_per_pair=track.case_pairs().minutes_per_pair,
        first=first,
    )


def _add_loss_findings(own: list[MetricFinding], differing: list[MetricFinding]) -> list[MetricFinding]:
    """Add loss findings *differing* to *own* ones.

    If the arms train differently, no number counts as improved.
    """
    if not any(finding.word in FAILING_VERDICTS for finding in differing):
        return [*own, *differing]
    praised = "trains differently, so this is not an improvement"
    return [
        *(
            replace(finding, word="incomparable", said=f"{praised}: {finding.said}")
            if finding.word == "improved"
            else finding
            for finding in own
        ),
        *differing,
    ]


def missing_efficiency_note(tracks: Sequence[CaseTrack], rules: GateRules) -> tuple[str, ...]:
    """Note on the cases whose scaling efficiency is gated but can't be computed."""
    cases = [track.slot.candidate for track in tracks if track.single_device is None]
    names = [
        one_line(case.name)
        for case in cases
        if case.world_size > 1 and rules.tolerances_for(case.label, case.name).efficiency is not None
    ]
    if not names:
        return ()
    why = "the suite has no matching case on one device (world_sizes: [1, ...])"
    return (f"Scaling efficiency not judged for {join_limited(names)}: {why}.",)


def unchanged_note(tracks: Sequence[CaseTrack]) -> tuple[str, ...]:
    """Note on the cases whose ranks run the same code in both arms."""
    unchanged = [track for track in tracks if track.unchanged]
    if not unchanged:
        return ()
    cases = format_count(len(unchanged), "case")
    return (f"Times and memory of {cases} are not compared (--always does it): {unchanged[0].unchanged}.",)


def _any_failed(*tracks: CaseTrack | None) -> bool:
    return any(track.failure for track in tracks if track)


def _throughput_finding(findings: Sequence[MetricFinding]) -> MetricFinding | None:
    return next((finding for finding in findings if finding.metric == "tokens_per_s"), None)


def _noise_note(pairs: RecordPairs) -> list[str]:
    """Note on trials on a noisy machine: both arms may have some, and they widen the interval."""
    reasons = [record.degraded for pair in pairs for record in pair if record.degraded]
    count = f"{len(reasons)} of {2 * len(pairs)} trials ran on a noisy machine"
    return [f"{count}, e.g. {one_line(reasons[0])}"] if reasons else []


def _failure_finding(baseline: Record | None, candidate: Record | None) -> MetricFinding:
    record = candidate or baseline
    assert record is not None
    ending = f"{record.status}: {one_line(record.reason)}"
    if candidate is None:
        return MetricFinding("trial", "incomparable", f"failed twice in the baseline ({ending})")
    word: GateVerdict = "invalid" if candidate.status is Status.INVALID_NAN else "broken"
    return MetricFinding("trial", word, f"runs in the baseline but failed twice here ({ending})")


def required_findings(row: CaseSummary | None, rules: GateRules) -> list[MetricFinding]:
    """Findings on the kinds of verdict that *rules* require of a case."""
    return [_required_finding(row, kind) for kind in rules.required_kinds]


def _required_finding(row: CaseSummary | None, kind: str) -> MetricFinding:
    verdict = row.verdicts.get(kind) if row else None
    if verdict is None:
        section = known.kind.name if (known := job_results().get(kind)) else kind
        return MetricFinding(
            kind, "missing", f"no {kind} verdict for this case; does the suite have {section}?"
        )
    word: GateVerdict = "pass" if verdict.gravity == "ok" else "invalid"
    if verdict.gravity == "unknown":
        # a check that was not tried is missing: silence never passes
        word = "inconclusive" if verdict.word == INCONCLUSIVE else "missing"
    return MetricFinding(kind, word, one_line(verdict.sentence))


def likely_cause(pace: MetricFinding | None, base: MetricFinding | None, pairs: RecordPairs) -> str:
    """Likely cause of a loss in *pace*, the throughput, with *base*, that on one device; empty if none."""
    if pace is None or pace.word != "regressed":
        return ""
    return "; ".join(
        [
            *_single_device_cause(base),
            *_traffic_cause(pairs),
            *_imbalance_cause(pairs),
            *_profile_cause(pairs),
        ]
    )


def _single_device_cause(base: MetricFinding | None) -> list[str]:
    if base and base.ratio is not None and base.word == "regressed":
        return [f"computation: a step of a single device takes {percent_change(base.ratio)} more time, too"]
    if base and base.ratio is not None and base.word in ("pass", "improved"):
        return ["communication or imbalance: a step of a single device takes no more time"]
    return []


def _traffic_cause(pairs: RecordPairs) -> list[str]:
    """Growth of the communication per step, if it grew."""
    grown = []
    for column, text, noun in (
        ("comm_calls", format_number, " collectives"),
        ("comm_bytes", format_bytes, ""),
    ):
        before, after = _medians(pairs, column)
        if after > before:
            grown.append(f"{text(after)}{noun}, was {text(before)}")
    return [f"communication per step: {'; '.join(grown)}"] if grown else []


def _imbalance_cause(pairs: RecordPairs) -> list[str]:
    before, after = _medians(pairs, "imbalance")
    if not after - before >= _MIN_IMBALANCE_RISE:
        return []
    return [f"imbalance: the busiest rank does {after:.2f}x the mean work, was {before:.2f}x"]


def _profile_cause(pairs: RecordPairs) -> list[str]:
    """The phases of a profiled step that account for most of the added time."""
    sides = {part: _medians(pairs, column) for column, part in _PROFILE_PHASES.items()}
    grown = [(after - before, part) for part, (before, after) in sides.items() if after > before]
    least = _MIN_SHARE * sum(growth for growth, _ in grown)
    named = sorted((item for item in grown if item[0] > least), key=lambda item: -item[0])
    parts = ", ".join(f"{format_duration(growth)} in {part}" for growth, part in named)
    return [f"a profiled step is longer by {parts}"] if parts else []


def _medians(pairs: RecordPairs, column: str) -> tuple[float, float]:
    """Medians of the baseline and of the candidate; NaN, which compares as not larger, if unknown."""
    before, after = (median_of_arm(pairs, column, side) for side in (0, 1))
    return math.nan if before is None else before, math.nan if after is None else after

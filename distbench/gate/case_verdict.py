"""From the tracks of a gate's series to the verdict on each case, and the likely cause of a slowdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.comparison import settings_apart
from distbench.analysis.job_results import INCONCLUSIVE, job_results
from distbench.core.text import listed, one_line
from distbench.core.units import bytes_text, duration_text, number_text
from distbench.gate import losses
from distbench.gate.metric_rules import findings
from distbench.gate.pairs import Pairs, median
from distbench.gate.series import Track
from distbench.gate.verdicts import FAILING, CaseVerdict, Finding, Word, confirmed, unconfirmed
from distbench.gate.wording import percent
from distbench.record import Record, Status
from distbench.suite.gate import GateRules

if TYPE_CHECKING:
    import numpy as np

Summaries = tuple[dict[str, CaseSummary], dict[str, CaseSummary]]
"""Summaries of the baseline's and the candidate's cases, by case id."""

_PARTS = {
    "profile_exposed_comm_s": "exposed communication",
    "profile_forward_s": "the forward pass",
    "profile_backward_s": "the backward pass",
    "profile_optimizer_s": "the optimizer step",
    "profile_data_s": "loading data",
}
_LEAST_SHARE = 0.3
"""Smallest share of the added step time for which a part is named."""
_UNEVEN = 0.02
"""Smallest reported rise of the imbalance: work of the slowest rank over the mean."""


def track_findings(track: Track, rules: GateRules) -> list[Finding]:
    """Findings on the pairs of *track*, or on why it has none."""
    if track.failure:
        return [_failed(*track.failure)]
    if not track.pairs:
        return [Finding("trial", "inconclusive", "no pair of trials finished within gate.minutes")]
    case = track.slot.candidate
    return findings(track.measured(), rules, rules.of(case.label, case.name))


def all_pairs(track: Track, repeat: Track | None) -> Pairs:
    """Pairs of *track* and of its *repeat* in the second series, if there was one."""
    return [*track.pairs, *(repeat.pairs if repeat else [])]


def case_verdict(
    track: Track,
    repeat: Track | None,
    summaries: Summaries,
    rules: GateRules,
    *,
    perturbed: Sequence[np.ndarray] = (),
    launches: Finding | None = None,
    confirms: bool,
) -> CaseVerdict:
    """Verdict on the case of *track*.

    Args:
        repeat: Its track in the second series, if it was flagged, or its launches failed.
        summaries: What both runs recorded, for differing settings and required checks.
        perturbed: Losses (steps,) of the baseline's trainings from perturbed weights, if any were made.
        launches: Finding on its launches, if any failed.
        confirms: Whether a regression or an improvement needs a second series to stand.
    """
    case = track.slot.candidate
    own = track_findings(track, rules)
    first: tuple[Finding, ...] = ()
    if repeat is not None and (repeat.pairs or repeat.failure):
        first, own = tuple(own), confirmed(own, track_findings(repeat, rules))
    elif confirms:
        own = [unconfirmed(finding) for finding in own]
    before, after = summaries[0].get(track.slot.baseline.id), summaries[1].get(case.id)
    pairs = all_pairs(track, repeat)
    work, notes = settings_apart(before, after) if before and after else ("", ())
    own = (
        [Finding("trial", "incomparable", work)]
        if work
        else _of_one_training(own, losses.findings(pairs, rules.loss, perturbed))
    )
    own += [launches] if launches and not _has_failed(track, repeat) else []
    own += demanded(after, rules)
    # the base of the series that the pace finding comes from: a confirmed loss is from the second
    base = repeat.base if repeat and repeat.base and repeat.base.pairs else track.base
    return CaseVerdict(
        case=case.name,
        label=case.label,
        world_size=case.world_size,
        findings=tuple(own),
        cause=cause(_pace(own), _pace(track_findings(base, rules)) if base else None, pairs),
        notes=(*notes, *_noisy(pairs)),
        minutes_per_pair=track.measured().minutes_per_pair,
        first=first,
    )


def _of_one_training(own: list[Finding], apart: list[Finding]) -> list[Finding]:
    """*own* and what the losses say; nothing that another training does better is an improvement."""
    if not any(finding.word in FAILING for finding in apart):
        return [*own, *apart]
    praised = "another training, so this is no improvement"
    return [
        *(
            replace(finding, word="incomparable", said=f"{praised}: {finding.said}")
            if finding.word == "improved"
            else finding
            for finding in own
        ),
        *apart,
    ]


def without_efficiency(tracks: Sequence[Track], rules: GateRules) -> tuple[str, ...]:
    """Note on the cases whose scaling efficiency is gated but can't be computed."""
    cases = [track.slot.candidate for track in tracks if track.base is None]
    names = [
        one_line(case.name)
        for case in cases
        if case.world_size > 1 and rules.of(case.label, case.name).efficiency is not None
    ]
    if not names:
        return ()
    why = "the suite has no matching case on one device (world_sizes: [1, ...])"
    return (f"Scaling efficiency not judged for {listed(names)}: {why}.",)


def _has_failed(*tracks: Track | None) -> bool:
    return any(track.failure for track in tracks if track)


def _pace(findings: Sequence[Finding]) -> Finding | None:
    return next((finding for finding in findings if finding.metric == "tokens_per_s"), None)


def _noisy(pairs: Pairs) -> list[str]:
    """Note on trials on a noisy machine: both arms may have some, and the interval is wider for it."""
    reasons = [record.degraded for pair in pairs for record in pair if record.degraded]
    count = f"{len(reasons)} of {2 * len(pairs)} trials ran on a noisy machine"
    return [f"{count}, e.g. {one_line(reasons[0])}"] if reasons else []


def _failed(baseline: Record | None, candidate: Record | None) -> Finding:
    record = candidate or baseline
    assert record is not None
    ending = f"{record.status}: {one_line(record.reason)}"
    if candidate is None:
        return Finding("trial", "incomparable", f"failed twice in the baseline ({ending})")
    word: Word = "invalid" if candidate.status is Status.INVALID_NAN else "broken"
    return Finding("trial", word, f"runs in the baseline but failed twice here ({ending})")


def demanded(row: CaseSummary | None, rules: GateRules) -> list[Finding]:
    """Findings on the kinds of verdict that *rules* require of a case."""
    return [_required(row, kind) for kind in rules.demands]


def _required(row: CaseSummary | None, kind: str) -> Finding:
    verdict = row.verdicts.get(kind) if row else None
    if verdict is None:
        section = known.kind.name if (known := job_results().get(kind)) else kind
        return Finding(kind, "missing", f"no {kind} verdict for this case; does the suite have {section}?")
    word: Word = "pass" if verdict.gravity == "ok" else "invalid"
    if verdict.gravity == "unknown":
        # what was not tried is missing: silence never passes
        word = "inconclusive" if verdict.word == INCONCLUSIVE else "missing"
    return Finding(kind, word, one_line(verdict.sentence))


def cause(pace: Finding | None, base: Finding | None, pairs: Pairs) -> str:
    """Where throughput is lost by *pace*, its finding, and *base*, that on one device; empty if it isn't."""
    if pace is None or pace.word != "regressed":
        return ""
    return "; ".join([*_one_device(base), *_traffic(pairs), *_imbalance(pairs), *_parts(pairs)])


def _one_device(base: Finding | None) -> list[str]:
    if base and base.ratio is not None and base.word == "regressed":
        return [f"computation: a step of a single device takes {percent(base.ratio)} more time, too"]
    if base and base.ratio is not None and base.word in ("pass", "improved"):
        return ["communication or imbalance: a step of a single device takes no more time"]
    return []


def _traffic(pairs: Pairs) -> list[str]:
    """Growth of the communication per step, if it grew."""
    grown = []
    for column, text, noun in (("comm_calls", number_text, " collectives"), ("comm_bytes", bytes_text, "")):
        before, after = _medians(pairs, column)
        if after > before:
            grown.append(f"{text(after)}{noun}, was {text(before)}")
    return [f"communication per step: {'; '.join(grown)}"] if grown else []


def _imbalance(pairs: Pairs) -> list[str]:
    before, after = _medians(pairs, "imbalance")
    if not after - before >= _UNEVEN:
        return []
    return [f"imbalance: the busiest rank does {after:.2f}x the mean work, was {before:.2f}x"]


def _parts(pairs: Pairs) -> list[str]:
    """The parts of a profiled step that make up most of what it became longer by."""
    sides = {part: _medians(pairs, column) for column, part in _PARTS.items()}
    grown = [(after - before, part) for part, (before, after) in sides.items() if after > before]
    least = _LEAST_SHARE * sum(growth for growth, _ in grown)
    named = sorted((item for item in grown if item[0] > least), key=lambda item: -item[0])
    parts = ", ".join(f"{duration_text(growth)} in {part}" for growth, part in named)
    return [f"a profiled step is longer by {parts}"] if parts else []


def _medians(pairs: Pairs, column: str) -> tuple[float, float]:
    """Medians of the baseline and of the candidate; NaN, which is not larger than anything, if unknown."""
    before, after = (median(pairs, column, side) for side in (0, 1))
    return math.nan if before is None else before, math.nan if after is None else after

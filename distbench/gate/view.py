"""A gate's result as lines of text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distbench.analysis.change_attribution import ChangeAttribution, absence_sentences
from distbench.core.text import join_limited, one_line, wrap_text
from distbench.core.units import format_duration
from distbench.gate.calibration import CaseCalibration
from distbench.gate.metric_rules import estimator_of
from distbench.gate.sequential_test import PairRule, detectable_loss, pairs_needed, resolvable_effect
from distbench.gate.verdicts import FAILING_VERDICTS, CaseVerdict, GateResult, MetricFinding
from distbench.gate.wording import COST_WORDS, describe_change
from distbench.tables.table import PERCENT, Field, Table, TableCell, TableRow
from distbench.tables.text_table import Emphasis, Painter, no_color

if TYPE_CHECKING:
    from distbench.gate.forecast import GateForecast

COLUMN_TITLES = {
    "tokens_per_s": "step",
    "efficiency": "efficiency",
    "peak_memory": "memory",
    "startup": "start-up",
    "comm_bytes": "comm.",
    "comm_calls": "calls",
}
"""Gated number -> column heading."""
_CASE = Field("case", "case", "Name of the case.", type="varchar")
_EXAMPLE_TOLERANCES = (0.03, 0.05, 0.10)
_DEFAULT_MAX_PAIRS = 20
_CI_COMMANDS = re.compile(r"^\s*::|##(?=\w*\[)", re.MULTILINE)
_VERDICT_STYLES: dict[str, Emphasis] = {
    "improved": "good",
    **dict.fromkeys(FAILING_VERDICTS, "bad"),
    **dict.fromkeys(("inconclusive", "incomparable"), "doubtful"),
}
_VERDICT_MARKS = {"pass": "", "improved": " +", "regressed": " !", "inconclusive": " ?"}
CAPTION = (
    "Change in cost from baseline to candidate, run side by side: +2% means a 2% longer step, 2% lower "
    "efficiency or 2% more memory. Brackets: 95% interval over pairs of trials; numbers without one are "
    "counted. !: beyond the tolerance, +: better by more than the tolerance, ?: inconclusive."
)


def result_table(result: GateResult) -> Table:
    """All cases with their verdicts and costs, and sentences on those that did not pass."""
    title = f"{one_line(result.suite)}: {one_line(result.candidate)} vs. {one_line(result.baseline)}"
    verdict = Field("verdict", "verdict", "Verdict of the gate.", type="varchar")
    judged = {finding.metric for case in result.cases for finding in case.findings}
    costs = [
        Field(name, heading, "Candidate over baseline.")
        for name, heading in COLUMN_TITLES.items()
        # only a suite with a tolerance for it has it
        if name != "startup" or name in judged
    ]
    rows = tuple(map(_row, result.cases))
    return Table(title, CAPTION, (_CASE, verdict, *costs), rows, tuple(result_sentences(result)))


def result_text(result: GateResult, width: int, paint: Painter = no_color) -> str:
    """Table of all cases, sentences on those that did not pass, and the verdict."""
    tone = _VERDICT_STYLES.get(result.word, "best")
    verdict = "\n".join(paint(line, tone) for line in wrap_text(result_headline(result), width))
    shown = _neutralize_ci_commands(f"{result_table(result).to_text(width, paint)}\n\n{verdict}")
    return f"{shown}\n\n{result_text(result.since, width, paint)}" if result.since else shown


def _neutralize_ci_commands(text: str) -> str:
    """Neutralize text that a CI runner would execute as a command, wherever lines were broken.

    GitHub's runner takes a log line that starts with ``::`` for a command; it and Azure's take ``##[``
    anywhere.
    """
    return _CI_COMMANDS.sub(lambda match: match[0][:-1] + " " + match[0][-1], text)


def result_headline(result: GateResult) -> str:
    """The verdict in one sentence."""
    words = Counter(case.word for case in result.cases)
    counts = ", ".join(f"{count} {word}" for word, count in words.items()) or "no cases"
    stopped = "; interrupted" if result.state == "interrupted" else ""
    return f"{result.word}: {counts} ({result.minutes:.1f} minutes){stopped}"


def result_sentences(result: GateResult) -> list[str]:
    """Environment differences, then reasons and causes for each case that did not pass."""
    lines = []
    if result.environment:
        facts = [f"{key}: {one_line(a)}, now {one_line(b)}" for key, (a, b) in result.environment.items()]
        lines.append(f"Environment: {join_limited(facts, limit=8)}.")
    for case in result.cases:
        lines += case_sentences(case)
    lines += _undetected_loss(result)
    lines += [f"{one_line(name)}: not run: {one_line(why)}." for name, why in result.skipped.items()]
    return [*lines, *(one_line(note, 600) for note in result.notes)]


def _undetected_loss(result: GateResult) -> list[str]:
    """State the largest loss that passing cases may hide, and the loss that the gate detects."""
    passes = [
        (case, finding)
        for case in result.cases
        for finding in case.findings
        if finding.word == "pass" and finding.high is not None and finding.high > 1
    ]
    hidden = []
    for metric, words in COST_WORDS.items():
        highs = {case.case: item.high for case, item in passes if item.metric == metric and item.high}
        if highs:
            case = max(highs, key=highs.__getitem__)
            hidden.append(f"{describe_change(highs[case], words)} ({one_line(case)})")
    losses = [
        # the spread and the pairs of this gate
        detectable_loss(item.deviation, PairRule(item.limit, item.pairs, item.pairs))
        for _, item in passes
        if item.metric == "tokens_per_s" and item.deviation is not None and item.limit is not None
    ]
    if not hidden:
        return []
    stops = f"; this gate detects a slowdown of {max(losses):.1%} in 90% of runs" if losses else ""
    return [f"Cases that pass may still have up to {', '.join(hidden)} (97.5% bounds){stops}."]


def case_sentences(case: CaseVerdict) -> list[str]:
    """Sentences on a case with anything but a plain pass."""
    name = one_line(case.case)
    lines = [
        f"{name}: {finding.metric} {finding.word}: {one_line(finding.said, 600)}."
        for finding in case.findings
        if finding.word != "pass" or finding.notable
    ]
    lines += [f"{name}: cause: {one_line(case.cause, 600)}."] if case.cause else []
    lines += _split_sentences(case)
    return lines + [f"{name}: {one_line(note, 600)}." for note in case.notes]


def _split_sentences(case: CaseVerdict) -> list[str]:
    """Sentence on the part of a changed step that the machine explains, or on why that is unknown."""
    split = case.split
    if isinstance(split, ChangeAttribution):
        is_changed = split.step.half_log_width is None or not split.step.low <= 1 <= split.step.high
        return (
            [f"{one_line(case.case)}: {split.sentence()}."]
            if is_changed or split.has_unexplained_change
            else []
        )
    return absence_sentences({case.case: split})


def _row(case: CaseVerdict) -> TableRow:
    verdict = TableCell(case.word, emphasis=_VERDICT_STYLES.get(case.word, ""))
    return TableRow(
        {"case": case.case, "verdict": verdict, **{item.metric: _cell(item) for item in case.findings}}
    )


def _cell(finding: MetricFinding) -> TableCell:
    if finding.ratio is None:
        return TableCell(None, finding.word, finding.word)
    change, sign = _format_change(finding.ratio), _VERDICT_MARKS.get(finding.word, "")
    tone = _VERDICT_STYLES.get(finding.word, "")
    if finding.low is None or finding.high is None:
        return TableCell(finding.ratio, ("=" if finding.ratio == 1 else change) + sign, emphasis=tone)
    ends = f"({_format_change(finding.low)} to {_format_change(finding.high)})"
    return TableCell(finding.ratio, f"{change} {ends}{sign}", emphasis=tone)


def _format_change(ratio: float) -> str:
    """``+3.1%``, with more digits for tiny changes."""
    percent = (ratio - 1) * 100
    if percent >= 10_000:
        return f"{percent:+.0e}%"
    return f"{percent:+.1f}%" if abs(percent) >= 0.05 else f"{percent:+.2g}%"


def calibration_table(calibrations: Sequence[CaseCalibration]) -> Table:
    """Spread of equal trials, and the pairs needed to detect changes, per case."""
    fields = (
        _CASE,
        Field("number", "number", "Gated number.", type="varchar"),
        Field("spread", "spread", "Standard deviation of the ratio of two equal trials.", format=PERCENT),
        Field("resolves", "resolves", f"Tightest tolerance for {_DEFAULT_MAX_PAIRS} pairs.", format=PERCENT),
        Field("stops", "stops", "Smallest true loss that it then detects in 90% of gates.", format=PERCENT),
        *(
            Field(f"{effect:g}", f"{effect:.0%}", "Pairs for such a tolerance.")
            for effect in _EXAMPLE_TOLERANCES
        ),
    )
    rows = [
        TableRow(
            {
                "case": item.case,
                "number": COLUMN_TITLES[metric],
                "spread": deviation,
                "resolves": item.resolvable_change(metric, _DEFAULT_MAX_PAIRS) or 0.0,
                "stops": _detectable_loss(deviation, metric),
                **{f"{effect:g}": _pairs_cell(item, metric, effect) for effect in _EXAMPLE_TOLERANCES},
            }
        )
        for item in calibrations
        for metric, deviation in item.deviations.items()
    ]
    return Table(
        "Resolution of this machine",
        "spread: standard deviation of the ratio of two equal trials run back to back. resolves: the "
        f"tightest tolerance for which {_DEFAULT_MAX_PAIRS} pairs are enough. stops: the smallest true "
        "loss that a gate with that tolerance detects in 90% of runs, both series included. The other "
        "columns: pairs that a tolerance of that size needs per series, and their time.",
        fields,
        tuple(rows),
    )


def _detectable_loss(deviation: float, metric: str) -> float:
    """Smallest true loss that a gate stops in 90% of runs.

    The tolerance is the tightest for ``_DEFAULT_MAX_PAIRS``.
    """
    by = estimator_of(metric)
    tightest = resolvable_effect(deviation, _DEFAULT_MAX_PAIRS, by)
    return detectable_loss(deviation, PairRule(tightest, _DEFAULT_MAX_PAIRS, _DEFAULT_MAX_PAIRS, by))


def _pairs_cell(item: CaseCalibration, metric: str, effect: float) -> TableCell:
    pairs = pairs_needed(item.deviations[metric], effect, estimator_of(metric))
    text = f"{pairs} ({format_duration(pairs * item.minutes_per_pair * 60)})"
    return TableCell(pairs, text, emphasis="good" if pairs <= _DEFAULT_MAX_PAIRS else "bad")


def forecast_text(forecast: GateForecast, width: int) -> str:
    """Table of a forecast."""
    fields = (
        _CASE,
        Field("trials", "trials", "Trials, at most."),
        Field("minutes", "minutes", "Minutes, at most."),
        Field("sees", "stops", "Smallest true slowdown that it detects in 90% of gates.", format=PERCENT),
    )
    rows = [
        TableRow(
            {
                "case": row.case,
                "trials": TableCell(row.trials[1], f"{row.trials[0]}–{row.trials[1]}"),
                "minutes": TableCell(row.minutes[1], "{:.1f}–{:.1f}".format(*row.minutes))
                if row.minutes
                else None,
                "sees": row.sees,
            }
        )
        for row in forecast.rows
    ]
    table = Table(forecast.title, forecast.caption, fields, tuple(rows), tuple(forecast.notes))
    return table.to_text(width)

"""A gate's result as lines of text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distbench.core.text import listed, one_line
from distbench.core.units import duration_text
from distbench.gate.calibration import Calibrated
from distbench.gate.metric_rules import estimator_of
from distbench.gate.sequential_test import Rule, pairs_for, resolvable, stopped
from distbench.gate.verdicts import FAILING, CaseVerdict, Finding, Result
from distbench.gate.wording import WORDS, change
from distbench.tables.emphasis import Paint, Tone, unpainted
from distbench.tables.line_wrapping import folded
from distbench.tables.table import PERCENT, Cell, Field, Row, Sheet

if TYPE_CHECKING:
    from distbench.gate.forecast import Forecast

COLUMNS = {
    "tokens_per_s": "step",
    "efficiency": "efficiency",
    "peak_memory": "memory",
    "comm_bytes": "comm.",
    "comm_calls": "calls",
}
"""Gated number -> column heading."""
_CASE = Field("case", "case", "Name of the case.", type="varchar")
_EFFECTS = (0.03, 0.05, 0.10)
_MOST_PAIRS = 20
_COMMANDS = re.compile(r"^\s*::|##(?=\w*\[)", re.MULTILINE)
_TONES: dict[str, Tone] = {
    "improved": "good",
    **dict.fromkeys(FAILING, "bad"),
    **dict.fromkeys(("inconclusive", "incomparable"), "doubtful"),
}
_SIGNS = {"pass": "", "improved": " +", "regressed": " !", "inconclusive": " ?"}
CAPTION = (
    "Change in cost from baseline to candidate, run side by side: +2% means a 2% longer step, 2% lower "
    "efficiency or 2% more memory. Brackets: 95% interval over pairs of trials; numbers without one are "
    "counted. !: beyond the tolerance, +: better by more than the tolerance, ?: inconclusive."
)


def sheet(result: Result) -> Sheet:
    """All cases with their verdicts and costs, and sentences on those that did not pass."""
    title = f"{one_line(result.suite)}: {one_line(result.candidate)} vs. {one_line(result.baseline)}"
    verdict = Field("verdict", "verdict", "Verdict of the gate.", type="varchar")
    costs = [Field(name, heading, "Candidate over baseline.") for name, heading in COLUMNS.items()]
    rows = tuple(map(_row, result.cases))
    return Sheet(title, CAPTION, (_CASE, verdict, *costs), rows, tuple(sentences(result)))


def text(result: Result, width: int, paint: Paint = unpainted) -> str:
    """Table of all cases, sentences on those that did not pass, and the verdict."""
    tone = _TONES.get(result.word, "best")
    verdict = "\n".join(paint(line, tone) for line in folded(headline(result), width))
    shown = _no_commands(f"{sheet(result).as_text(width, paint)}\n\n{verdict}")
    return f"{shown}\n\n{text(result.since, width, paint)}" if result.since else shown


def _no_commands(text: str) -> str:
    """*text* with nothing a CI runner would execute as a command, wherever lines were broken.

    GitHub's runner takes a log line that starts with ``::`` for a command; it and Azure's take ``##[``
    anywhere.
    """
    return _COMMANDS.sub(lambda match: match[0][:-1] + " " + match[0][-1], text)


def headline(result: Result) -> str:
    """The verdict in one sentence."""
    words = Counter(case.word for case in result.cases)
    counts = ", ".join(f"{count} {word}" for word, count in words.items()) or "no cases"
    stopped = "; interrupted" if result.state == "interrupted" else ""
    return f"{result.word}: {counts} ({result.minutes:.1f} minutes){stopped}"


def sentences(result: Result) -> list[str]:
    """Environment differences, then reasons and causes for each case that did not pass."""
    lines = []
    if result.environment:
        facts = [f"{key}: {one_line(a)}, now {one_line(b)}" for key, (a, b) in result.environment.items()]
        lines.append(f"Environment: {listed(facts, most=8)}.")
    for case in result.cases:
        lines += case_sentences(case)
    lines += _behind_passes(result)
    lines += [f"{one_line(name)}: not run: {one_line(why)}." for name, why in result.skipped.items()]
    return [*lines, *(one_line(note, 600) for note in result.notes)]


def _behind_passes(result: Result) -> list[str]:
    """What may still be lost where a number passes, and which loss such a gate stops."""
    passes = [
        (case, finding)
        for case in result.cases
        for finding in case.findings
        if finding.word == "pass" and finding.high is not None and finding.high > 1
    ]
    hidden = []
    for metric, words in WORDS.items():
        highs = {case.case: item.high for case, item in passes if item.metric == metric and item.high}
        if highs:
            case = max(highs, key=highs.__getitem__)
            hidden.append(f"{change(highs[case], words)} ({one_line(case)})")
    losses = [
        # the spread and the pairs of this gate
        stopped(item.deviation, Rule(item.limit, item.pairs, item.pairs))
        for _, item in passes
        if item.metric == "tokens_per_s" and item.deviation is not None and item.limit is not None
    ]
    if not hidden:
        return []
    stops = f"; a slowdown of {max(losses):.1%} is stopped in 90% of such gates" if losses else ""
    return [f"What a pass can't exclude (97.5% bounds): up to {', '.join(hidden)}{stops}."]


def case_sentences(case: CaseVerdict) -> list[str]:
    """Sentences on a case with anything but a plain pass."""
    name = one_line(case.case)
    lines = [
        f"{name}: {finding.metric} {finding.word}: {one_line(finding.said, 600)}."
        for finding in case.findings
        if finding.word != "pass" or finding.notable
    ]
    lines += [f"{name}: cause: {one_line(case.cause, 600)}."] if case.cause else []
    return lines + [f"{name}: {one_line(note, 600)}." for note in case.notes]


def _row(case: CaseVerdict) -> Row:
    verdict = Cell(case.word, tone=_TONES.get(case.word, ""))
    return Row(
        {"case": case.case, "verdict": verdict, **{item.metric: _cell(item) for item in case.findings}}
    )


def _cell(finding: Finding) -> Cell:
    if finding.ratio is None:
        return Cell(None, finding.word, finding.word)
    change, sign = _change(finding.ratio), _SIGNS.get(finding.word, "")
    tone = _TONES.get(finding.word, "")
    if finding.low is None or finding.high is None:
        return Cell(finding.ratio, ("=" if finding.ratio == 1 else change) + sign, tone=tone)
    ends = f"({_change(finding.low)} to {_change(finding.high)})"
    return Cell(finding.ratio, f"{change} {ends}{sign}", tone=tone)


def _change(ratio: float) -> str:
    """``+3.1%``, with more digits for tiny changes."""
    percent = (ratio - 1) * 100
    if percent >= 10_000:
        return f"{percent:+.0e}%"
    return f"{percent:+.1f}%" if abs(percent) >= 0.05 else f"{percent:+.2g}%"


def calibration_sheet(calibrations: Sequence[Calibrated]) -> Sheet:
    """Spread of equal trials, and the pairs needed to detect changes, per case."""
    fields = (
        _CASE,
        Field("number", "number", "Gated number.", type="varchar"),
        Field("spread", "spread", "Standard deviation of the ratio of two equal trials.", format=PERCENT),
        Field("resolves", "resolves", f"Tightest tolerance for {_MOST_PAIRS} pairs.", format=PERCENT),
        Field("stops", "stops", "Smallest true loss that it then stops in 90% of gates.", format=PERCENT),
        *(Field(f"{effect:g}", f"{effect:.0%}", "Pairs for such a tolerance.") for effect in _EFFECTS),
    )
    rows = [
        Row(
            {
                "case": item.case,
                "number": COLUMNS[metric],
                "spread": deviation,
                "resolves": item.smallest(metric, _MOST_PAIRS) or 0.0,
                "stops": _stopped(deviation, metric),
                **{f"{effect:g}": _pairs(item, metric, effect) for effect in _EFFECTS},
            }
        )
        for item in calibrations
        for metric, deviation in item.deviations.items()
    ]
    return Sheet(
        "Resolution of this machine",
        "spread: standard deviation of the ratio of two equal trials run back to back. resolves: the "
        f"tightest tolerance for which {_MOST_PAIRS} pairs are enough. stops: the smallest true loss that a "
        "gate with that tolerance stops in 90%, both series included. The other columns: pairs that a "
        "tolerance of that size takes in a series, and their time.",
        fields,
        tuple(rows),
    )


def _stopped(deviation: float, metric: str) -> float:
    """Smallest true loss that a gate stops in 90% with the tightest tolerance for ``_MOST_PAIRS``."""
    by = estimator_of(metric)
    tightest = resolvable(deviation, _MOST_PAIRS, by)
    return stopped(deviation, Rule(tightest, _MOST_PAIRS, _MOST_PAIRS, by))


def _pairs(item: Calibrated, metric: str, effect: float) -> Cell:
    pairs = pairs_for(item.deviations[metric], effect, estimator_of(metric))
    text = f"{pairs} ({duration_text(pairs * item.minutes_per_pair * 60)})"
    return Cell(pairs, text, tone="good" if pairs <= _MOST_PAIRS else "bad")


def forecast_text(forecast: Forecast, width: int) -> str:
    """Table of a forecast."""
    fields = (
        _CASE,
        Field("trials", "trials", "Trials, at most."),
        Field("minutes", "minutes", "Minutes, at most."),
        Field("sees", "stops", "Smallest true slowdown that it stops in 90% of gates.", format=PERCENT),
    )
    rows = [
        Row(
            {
                "case": row.case,
                "trials": Cell(row.trials[1], f"{row.trials[0]}–{row.trials[1]}"),
                "minutes": Cell(row.minutes[1], "{:.1f}–{:.1f}".format(*row.minutes))
                if row.minutes
                else None,
                "sees": row.sees,
            }
        )
        for row in forecast.rows
    ]
    table = Sheet(forecast.title, forecast.caption, fields, tuple(rows), tuple(forecast.notes))
    return table.as_text(width)

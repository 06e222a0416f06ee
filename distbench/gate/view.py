"""A gate's result as lines of text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distbench.analysis.paired import pairs_for
from distbench.analysis.text import listed, one_line
from distbench.gate.calibration import Calibrated
from distbench.gate.verdicts import CaseVerdict, Finding, Result
from distbench.report.tables import Table, as_text
from distbench.units import duration_text

if TYPE_CHECKING:
    from distbench.gate.forecast import Forecast

COLUMNS = {
    "tokens_per_s": "step",
    "efficiency": "efficiency",
    "peak_memory": "memory",
    "comm_bytes": "comm.",
    "comm_calls": "calls",
}
"""Number -> its heading in tables."""
_COMMANDS = re.compile(r"^\s*::|##(?=\w*\[)", re.MULTILINE)
_SIGNS = {"pass": "", "improved": " +", "regressed": " !", "inconclusive": " ?"}
CAPTION = (
    "Cost of the candidate against the baseline's, run side by side: +2% is a step 2% longer, an efficiency "
    "2% lower, 2% more memory. In brackets the interval of 95% over pairs of trials; what has none is "
    "counted. !: beyond its tolerance, +: better by as much, ?: not told yet."
)


def text(result: Result, width: int) -> str:
    """Return the table of all cases, the sentences of those that did not pass, and the verdict."""
    rows = tuple((one_line(case.case), case.word, *cells(case)) for case in result.cases)
    title = f"{one_line(result.suite)}: {one_line(result.candidate)} against {one_line(result.baseline)}"
    table = Table(
        "gate", title, CAPTION, ("case", "verdict", *COLUMNS.values()), rows, tuple(sentences(result))
    )
    return _no_commands(as_text(table, width) + "\n\n" + "\n".join(textwrap.wrap(headline(result), width)))


def _no_commands(told: str) -> str:
    """Return *told* without what the runner of a CI takes for its commands, wherever lines were broken.

    A line of a log that begins with ``::`` is one to GitHub's, and ``##[`` anywhere to that and to Azure's.
    """
    return _COMMANDS.sub(lambda found: found[0][:-1] + " " + found[0][-1], told)


def headline(result: Result) -> str:
    """Return the verdict in one sentence."""
    words: dict[str, int] = {}
    for case in result.cases:
        words[case.word] = words.get(case.word, 0) + 1
    counts = ", ".join(f"{count} {word}" for word, count in words.items()) or "no case"
    stopped = "; stopped before its end" if result.state == "interrupted" else ""
    return f"{result.word}: {counts} ({result.minutes:.1f} minutes){stopped}"


def sentences(result: Result) -> list[str]:
    """Return what differs in the environment, and of each case that did not pass why, and its cause."""
    told = []
    if result.environment:
        facts = [f"{key}: {one_line(a)}, now {one_line(b)}" for key, (a, b) in result.environment.items()]
        told.append(f"Environment: {listed(facts, most=8)}.")
    for case in result.cases:
        told += case_sentences(case)
    told += [f"{one_line(name)}: not run: {one_line(why)}." for name, why in result.skipped.items()]
    return [*told, *(one_line(note, 600) for note in result.notes)]


def case_sentences(case: CaseVerdict) -> list[str]:
    """Return what to know of a case that did not simply pass."""
    name = one_line(case.case)
    told = [
        f"{name}: {one.metric} {one.word}: {one_line(one.said, 600)}."
        for one in case.findings
        if one.word != "pass" or one.notable
    ]
    told += [f"{name}: cause: {one_line(case.cause, 600)}."] if case.cause else []
    return told + [f"{name}: {one_line(note, 600)}." for note in case.notes]


def cells(case: CaseVerdict) -> list[str]:
    """Return a cell for each of ``COLUMNS``."""
    by_name = {one.metric: one for one in case.findings}
    return [_cell(by_name.get(name)) for name in COLUMNS]


def _cell(one: Finding | None) -> str:
    if one is None:
        return "–"
    if one.ratio is None:
        return one.word
    if one.low is None or one.high is None:
        same = "=" if one.ratio == 1 else _change(one.ratio)
        return same + _SIGNS.get(one.word, "")
    return f"{_change(one.ratio)} ({_change(one.low)} to {_change(one.high)}){_SIGNS.get(one.word, '')}"


def _change(ratio: float) -> str:
    """Return ``+3.1%``; more digits where they are what there is."""
    percent = (ratio - 1) * 100
    if percent >= 10_000:
        return f"{percent:+.0e}%"
    return f"{percent:+.1f}%" if abs(percent) >= 0.05 else f"{percent:+.2g}%"


_EFFECTS = (0.03, 0.05, 0.10)
_MOST_PAIRS = 20


def calibration_table(found: Sequence[Calibrated]) -> Table:
    """Return what pairs of equal trials have shown of each case."""
    rows = []
    for told in found:
        for metric, deviation in told.deviations.items():
            smallest = told.smallest(metric, _MOST_PAIRS) or 0.0
            needed = [pairs_for(deviation, effect) for effect in _EFFECTS]
            minutes = [duration_text(pairs * told.minutes_per_pair * 60) for pairs in needed]
            each = [f"{pairs} ({time})" for pairs, time in zip(needed, minutes, strict=True)]
            spread = (f"{deviation * 100:.1f}%", f"{smallest * 100:.1f}%")
            rows.append((one_line(told.case), COLUMNS[metric], *spread, *each))
    return Table(
        "calibration",
        "What this machine can resolve",
        "spread: standard deviation of the ratio of two equal trials run next to each other. resolves: the "
        f"smallest change that {_MOST_PAIRS} pairs can tell from none at 95%. Then the pairs that it takes "
        "to resolve a change, and their time.",
        ("case", "number", "spread", "resolves", *(f"{effect:.0%}" for effect in _EFFECTS)),
        tuple(rows),
    )


def forecast_text(made: Forecast, width: int) -> str:
    """Return what a gate would do, how long it takes and what it could see."""
    return as_text(
        Table(
            "forecast",
            made.title,
            made.caption,
            ("case", "trials", "minutes", "sees"),
            tuple(
                (one_line(row.case), *_forecast_cells(row.trials, row.minutes, row.sees)) for row in made.rows
            ),
            tuple(made.notes),
        ),
        width,
    )


def _forecast_cells(
    trials: tuple[int, int], minutes: tuple[float, float] | None, sees: float | None
) -> Sequence[str]:
    span = f"{minutes[0]:.1f}–{minutes[1]:.1f}" if minutes else "–"
    return f"{trials[0]}–{trials[1]}", span, "–" if sees is None else f"{sees * 100:.1f}%"

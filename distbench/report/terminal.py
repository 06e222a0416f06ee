"""The table of a run as plain text: readable at 80 columns, without colour, and piped."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from distbench.analysis.answer import answer
from distbench.analysis.names import parts
from distbench.analysis.parity import Footnotes, footnotes
from distbench.analysis.summary import (
    COMMUNICATION,
    LOSS,
    MEMORY,
    THROUGHPUT,
    UNMEASURED,
    CaseSummary,
    Estimate,
    summarise,
)
from distbench.analysis.text import one_line, shorten
from distbench.analysis.verdicts import sentence
from distbench.analysis.words import failures, findings
from distbench.record import Record, Status
from distbench.report import convergence_view
from distbench.report.tables import as_text
from distbench.store import RunInfo
from distbench.units import bytes_text, number_text

_HEADINGS = ("status", "tokens/s", "x ddp", "peak mem", "comm/step", "loss")
_WIDTHS = (9, 14, 6, 9, 9, 7)
_MOST_LOGS = 10
_LEAST_LABEL = 6
_LEGEND = (
    "tokens/s: median over trials ± half their range, higher is better; x ddp: tokens/s relative to "
    "ddp at the same world size; peak mem: most bytes of tensors on any rank, lower is better; "
    "comm/step: payload of a rank's collectives, lower is better; loss: of the last timed step; "
    "1/3 ok: trials that were measured, of all; *: on a disturbed machine, so not compared; –: not known, "
    "distbench show --json says why."
)


def table(info: RunInfo, records: Sequence[Record], width: int = 80) -> str:
    """Return the table, what it says in words, and what its columns mean.

    No line is wider than *width* (72 at least) but a path of a log, which is never broken.
    """
    cases = summarise(info, records)
    name_width = max(12, width - sum(_WIDTHS) - len(_WIDTHS))
    lines = [one_line(f"{info.suite_name} · run {info.run_id} · {info.state}", width)]
    notes = footnotes(cases)
    shown = [row for row in cases if row.status != UNMEASURED]
    for group, rows in _groups(shown).items():
        lines += ["", *_head(group, name_width, width)]
        for row in rows:
            lines += _lines(row, notes.marks.get(row.case.id, ""), name_width, width)
    if not cases:
        lines += ["", "This run has no cases."]
    said = [line for sentence in findings(cases) for line in _wrap(sentence, width, "  ")]
    bad = [line for sentence in failures(cases) for line in _wrap(sentence, width, "  ")]
    trained = (
        as_text(convergence_view.table(cases), width).splitlines()
        if any(row.convergence for row in cases)
        else []
    )
    legend = _wrap(_LEGEND, width, "") if shown else []
    blocks = [
        lines,
        footnote_lines(notes, width),
        _answer(cases, width),
        _verdicts(cases, width),
        trained,
        said,
        [*bad, *_logs(cases)],
        legend,
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _answer(cases: Sequence[CaseSummary], width: int) -> list[str]:
    """Return what to train with, and why; nothing where nothing was measured."""
    if not any(row.measured for row in cases):
        return []
    told = answer(cases)
    return [
        *_wrap(told.headline, width, "  "),
        *(line for reason in told.reasons for line in _wrap(f"  - {reason}", width, "    ")),
    ]


def footnote_lines(notes: Footnotes, width: int) -> list[str]:
    """Return what the marks beside the numbers mean."""
    told = notes.sentences.items()
    return [line for mark, sentence in told for line in _wrap(f"{mark} {sentence}", width, "    ")]


def _verdicts(cases: Sequence[CaseSummary], width: int) -> list[str]:
    """Return a line or two for each case that was checked."""
    checked = [row for row in cases if row.verdict]
    lines = ["Same training? (distbench show --view equivalence has the evidence)"] if checked else []
    for row in checked:
        if row.verdict:
            told = f"{one_line(row.case.name)}: {sentence(row.verdict)}"
            lines += textwrap.wrap(f"  {told}", width, subsequent_indent="    ", break_on_hyphens=False)
    return lines


def _groups(cases: Sequence[CaseSummary]) -> dict[str, list[CaseSummary]]:
    """Return the cases by what stands behind the strategy in their names: ``ws2/mb4/fp32``."""
    found: dict[str, list[CaseSummary]] = {}
    for row in cases:
        found.setdefault("/".join(parts(row.case)), []).append(row)
    return found


def _head(group: str, name_width: int, width: int) -> list[str]:
    if len(group) <= name_width:
        return [_row(group, _HEADINGS, name_width)]
    return [shorten(group, width), _row("", _HEADINGS, name_width)]


def _lines(row: CaseSummary, mark: str, name_width: int, width: int) -> list[str]:
    label = one_line(row.case.label) or "unnamed"
    if not row.measured:
        told = one_line(f"{row.status}: {row.reason}" if row.reason else row.status)
        head = f"{shorten(label, name_width):<{name_width}} "
        return textwrap.wrap(
            head + told, width, subsequent_indent=" " * len(head), max_lines=2, placeholder=" …"
        )
    cells = (
        _status(row) + ("*" if row.degraded else ""),
        _throughput(row.values.get(THROUGHPUT)),
        "–" if row.relative is None else f"{row.relative:.2f}",
        _bytes(row.values.get(MEMORY)),
        _bytes(row.values.get(COMMUNICATION)),
        _loss(row.values.get(LOSS)),
    )
    return [_row(label, cells, name_width, mark)]


def _status(row: CaseSummary) -> str:
    if row.differs:
        return "differs"
    return f"{row.trials}/{row.trials + row.failed} ok" if row.failed else str(row.status)


def _row(name: str, cells: Sequence[str], name_width: int, mark: str = "") -> str:
    status, *numbers = cells
    mark = shorten(mark, name_width - _LEAST_LABEL)
    name = shorten(name, name_width - len(mark)) + mark
    right = [f"{cell:>{size}}" for cell, size in zip(numbers, _WIDTHS[1:], strict=True)]
    return " ".join([f"{name:<{name_width}}", f"{status:<{_WIDTHS[0]}}", *right]).rstrip()


def _throughput(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    # ten million and more does not fit beside its spread
    large = estimate.value >= 1e7
    told = f"{estimate.value / 1e6:,.1f} M" if large else number_text(estimate.value)
    return told if estimate.spread is None else f"{told} ±{estimate.spread:.0%}"


def _bytes(estimate: Estimate | None) -> str:
    return "–" if estimate is None else bytes_text(estimate.value)


def _loss(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    return f"{estimate.value:.4f}" if abs(estimate.value) < 100 else f"{estimate.value:.3g}"


def _logs(cases: Sequence[CaseSummary]) -> list[str]:
    """Return where to read on about each failure, as paths inside the run's folder."""
    logs = [row.log for row in cases if row.log and row.status != Status.UNSUPPORTED]
    if not logs:
        return []
    more = [f"  and {len(logs) - _MOST_LOGS} more"] if len(logs) > _MOST_LOGS else []
    return ["Logs, in the run's folder:", *(f"  {log}" for log in logs[:_MOST_LOGS]), *more]


def _wrap(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)

"""The table of a run as plain text: readable at 80 columns, without colour, and piped."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from distbench.analysis.summary import (
    COMMUNICATION,
    LOSS,
    MEMORY,
    THROUGHPUT,
    CaseSummary,
    Estimate,
    summarise,
)
from distbench.analysis.words import sentences
from distbench.record import Record
from distbench.store import RunInfo
from distbench.units import bytes_text, number_text

_HEADINGS = ("status", "tokens/s", "x ddp", "peak mem", "comm/step", "loss")
_WIDTHS = (9, 14, 6, 9, 9, 7)
_LEGEND = (
    "tokens/s: median over trials ± half their range, higher is better; x ddp: tokens/s relative to "
    "ddp at the same world size; peak mem: most bytes of tensors on any rank, lower is better; "
    "comm/step: payload of a rank's collectives, lower is better; loss: of the last timed step."
)


def table(info: RunInfo, records: Sequence[Record], width: int = 80) -> str:
    """Return the table, what it says in words, and what its columns mean."""
    cases = summarise(info, records)
    name_width = max(12, width - sum(_WIDTHS) - len(_WIDTHS))
    lines = [f"{info.suite_name} · run {info.run_id} · {info.state}"]
    for group, rows in _groups(cases).items():
        lines += ["", _row(group, _HEADINGS, name_width)]
        for row in rows:
            lines += _lines(row, name_width, width)
    said = [line for sentence in sentences(cases) for line in _wrap(sentence, width, "  ")]
    return "\n".join([*lines, "", *said, "", *_wrap(_LEGEND, width, "")])


def _groups(cases: Sequence[CaseSummary]) -> dict[str, list[CaseSummary]]:
    """Return the cases by what stands behind the strategy in their names: ``ws2/mb4/fp32``."""
    found: dict[str, list[CaseSummary]] = {}
    for row in cases:
        found.setdefault(row.case.name.removeprefix(f"{row.case.label}/"), []).append(row)
    return found


def _lines(row: CaseSummary, name_width: int, width: int) -> list[str]:
    if row.measured:
        cells = (
            row.status,
            _throughput(row.values.get(THROUGHPUT)),
            "–" if row.relative is None else f"{row.relative:.2f}",
            _bytes(row.values.get(MEMORY)),
            _bytes(row.values.get(COMMUNICATION)),
            f"{row.values[LOSS].value:.4f}" if LOSS in row.values else "–",
        )
        return [_row(row.case.label, cells, name_width)]
    label = _fit(row.case.label, name_width)
    told = f"{row.status}: {row.reason}" if row.reason else row.status
    return textwrap.wrap(
        f"{label:<{name_width}} {told}",
        width,
        subsequent_indent=" " * (name_width + 1),
        max_lines=4,
        drop_whitespace=True,
    )


def _row(name: str, cells: Sequence[str], name_width: int) -> str:
    status, *numbers = cells
    right = [f"{cell:>{size}}" for cell, size in zip(numbers, _WIDTHS[1:], strict=True)]
    return " ".join([f"{_fit(name, name_width):<{name_width}}", f"{status:<{_WIDTHS[0]}}", *right]).rstrip()


def _throughput(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    spread = "" if estimate.spread is None else f" ±{estimate.spread:.0%}"
    return f"{number_text(estimate.value)}{spread}"


def _bytes(estimate: Estimate | None) -> str:
    return "–" if estimate is None else bytes_text(estimate.value)


def _fit(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _wrap(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=indent)

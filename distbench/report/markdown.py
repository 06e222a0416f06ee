"""A run in Markdown, for the comment of a pull request: the answer first, everything else folded away.

Tables and ``<details>`` are what GitHub and GitLab both show.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from distbench.analysis.answer import answer
from distbench.analysis.parity import footnotes, marked_names
from distbench.analysis.summary import COMMUNICATION, LOSS, MEMORY, THROUGHPUT, CaseSummary, summarise
from distbench.analysis.text import one_line
from distbench.analysis.verdicts import sentence
from distbench.analysis.words import failures, findings
from distbench.record import Record
from distbench.store import RunInfo
from distbench.units import value_text

_HEADINGS = ("case", "status", "tokens/s ↑", "× ddp", "peak memory ↓", "communication a step ↓", "final loss")
_LONGEST = 300
# a foreign name must not make markup, mention a person, or link an address or an issue
_MARKUP = re.compile(r'[\\`*_\[\]<>|~&@#$]|:(?=//)|!(?=\d)|%(?=["\w])|(?<=www)\.')


def page(info: RunInfo, records: Sequence[Record]) -> str:
    """Return the answer, the table of all cases, what to know of them and what went wrong."""
    cases = summarise(info, records)
    told = answer(cases)
    blocks = [
        f"## distbench: {escaped(info.suite_name)}",
        f"**{escaped(told.headline)}**",
        bullets(told.reasons),
        folded(f"All {len(cases)} cases", _table(cases)),
        folded("What to know of them", bullets([*_notes(cases), *findings(cases)])),
        folded("Same training?", bullets(_verdicts(cases))),
        folded("What failed or cannot run here", bullets(failures(cases))),
        f"<sub>run {escaped(info.run_id)}, {escaped(info.created)}, distbench {escaped(info.version)}; "
        "medians over trials ± half their range; ↑ higher, ↓ lower is better</sub>",
    ]
    return "\n\n".join(block for block in blocks if block)


def escaped(text: str) -> str:
    """Return foreign *text* as it stands, on one line, whatever Markdown would make of it."""
    # an entity, not a backslash: mentions and addresses are looked for after backslashes are gone
    return _MARKUP.sub(lambda found: f"&#{ord(found[0])};", one_line(text, _LONGEST))


def bullets(sentences: Sequence[str]) -> str:
    """Return foreign *sentences* as a list."""
    return "\n".join(f"- {escaped(sentence)}" for sentence in sentences)


def folded(title: str, content: str) -> str:
    """Return *content* in a fold; nothing if there is none. Markdown in it needs the empty lines."""
    return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>" if content else ""


def _table(cases: Sequence[CaseSummary]) -> str:
    names = marked_names(cases, cases)
    lines = [line(_HEADINGS), line(["---", "---", *["---:"] * (len(_HEADINGS) - 2)])]
    lines += [line([escaped(names[row.case.id]), *_cells(row)]) for row in cases]
    return "\n".join(lines) if cases else ""


def line(cells: Sequence[str]) -> str:
    """Return a row of a table; its cells are Markdown already."""
    return f"| {' | '.join(cells)} |"


def _cells(row: CaseSummary) -> list[str]:
    if not row.measured:
        return [escaped(row.status), *["–"] * 5]
    status = "differs" if row.differs else f"{row.status}{' (disturbed)' if row.degraded else ''}"
    relative = "–" if row.relative is None else f"{row.relative:.2f}"
    return [
        status,
        _number(row, THROUGHPUT, ""),
        relative,
        _number(row, MEMORY, "B"),
        _number(row, COMMUNICATION, "B"),
        f"{row.values[LOSS].value:.4f}" if LOSS in row.values else "–",
    ]


def _number(row: CaseSummary, column: str, unit: str) -> str:
    found = row.values.get(column)
    if found is None:
        return "–"
    spread = f" ±{found.spread:.0%}" if found.spread and found.spread >= 0.005 else ""
    return value_text(found.value, unit) + spread


def _notes(cases: Sequence[CaseSummary]) -> list[str]:
    return [f"{mark} {told}" for mark, told in footnotes(cases).sentences.items()]


def _verdicts(cases: Sequence[CaseSummary]) -> list[str]:
    return [f"{row.case.name}: {sentence(row.verdict)}" for row in cases if row.verdict]

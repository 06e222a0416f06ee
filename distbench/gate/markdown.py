"""A gate's result in Markdown, for the comment of a pull request or the summary of a job."""

from __future__ import annotations

from distbench.gate.verdicts import Result
from distbench.gate.view import CAPTION, COLUMNS, cells, headline, sentences
from distbench.report.markdown import bullets, escaped, folded, line


def page(result: Result) -> str:
    """Return the verdict, what did not pass and why, and the table of all cases in a fold."""
    rows = [line([escaped(case.case), case.word, *map(escaped, cells(case))]) for case in result.cases]
    table = [line(["case", "verdict", *COLUMNS.values()]), line(["---"] * (2 + len(COLUMNS))), *rows]
    arms = f"{escaped(result.candidate)} against {escaped(result.baseline)}"
    blocks = [
        f"## distbench gate: {escaped(result.suite)}",
        f"**{escaped(headline(result))}**: {arms}",
        bullets(sentences(result)),
        folded(f"All {len(result.cases)} cases", "\n".join(table)),
        f"<sub>{escaped(CAPTION)}</sub>",
    ]
    return "\n\n".join(block for block in blocks if block)

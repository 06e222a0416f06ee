"""Two runs side by side in Markdown, for the comment of a pull request."""

from __future__ import annotations

from distbench.report.comparison_view import Comparison, sentences, table
from distbench.report.markdown import bullets, escaped, folded, line


def page(made: Comparison) -> str:
    """Return what to know first, what the environments and settings differ in, and the table in a fold."""
    shown = table(made)
    first, *others = sentences(made)
    rows = [line([escaped(cell) for cell in row]) for row in shown.rows]
    ruled = line(["---", *["---:"] * (len(shown.headings) - 1)])
    blocks = [
        f"## distbench: {escaped(shown.title)}",
        f"**{escaped(first)}**",
        bullets(others),
        folded(f"All {len(rows)} cases", "\n".join([line(list(shown.headings)), ruled, *rows])),
        f"<sub>{escaped(shown.caption)}</sub>",
    ]
    return "\n\n".join(block for block in blocks if block)

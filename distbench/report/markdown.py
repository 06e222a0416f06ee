"""A run in Markdown, for the comment of a pull request: the answer first, everything else folded away.

Tables and ``<details>`` are what GitHub and GitLab both show.
"""

from __future__ import annotations

from distbench.analysis.key_findings import failures, findings, judgements
from distbench.analysis.recommendation import answer
from distbench.analysis.run import AnalysedRun
from distbench.report import overview
from distbench.tables.markdown_text import bullets, document, escaped, folded
from distbench.tables.table import Sheet


def page(run: AnalysedRun) -> str:
    """The answer, the table of all cases, key findings and failures."""
    info, best = run.info, answer(run)
    notes = [f"{mark} {sentence}" for mark, sentence in run.parity.footnotes.sentences.items()]
    return document(
        f"## distbench: {escaped(info.suite_name)}",
        f"**{escaped(best.headline)}**",
        bullets(best.reasons),
        folded(f"All {len(run.cases)} cases", overview.sheet(run).as_markdown()),
        folded("Key findings", bullets([*notes, *findings(run)])),
        *(folded(kind.capitalize(), bullets(judgements(run, kind))) for kind in run.kinds),
        folded("Failed or unsupported here", bullets(failures(run))),
        f"<sub>run {escaped(info.run_id)}, {escaped(info.created)}, distbench {escaped(info.version)}; "
        "speeds: mean over trials ± half the 95% interval; peak memory: largest trial; "
        "else median ± half the range; "
        "↑ higher, ↓ lower is better</sub>",
    )


def of_view(sheet: Sheet) -> str:
    """One view: its title, table, caption and notes."""
    return document(
        f"### {escaped(sheet.title)}",
        sheet.as_markdown(),
        bullets(sheet.notes),
        f"<sub>{escaped(sheet.caption)}</sub>",
    )

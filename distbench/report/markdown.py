"""Run in Markdown for the comment of a pull request: recommendation first, the rest collapsed.

Tables and ``<details>`` work on both GitHub and GitLab.
"""

from __future__ import annotations

from distbench.analysis.run import RunAnalysis
from distbench.analysis.wording.findings import failure_sentences, key_findings, verdict_sentences
from distbench.analysis.wording.recommendation import recommend
from distbench.report import overview
from distbench.tables.foreign_text import bullets, details, escape_markdown, join_blocks
from distbench.tables.table import Table


def run_markdown(run: RunAnalysis) -> str:
    """Recommendation, table of all cases, key findings and failures."""
    info, best = run.info, recommend(run)
    notes = [f"{mark} {sentence}" for mark, sentence in run.parity.footnotes.sentences.items()]
    return join_blocks(
        f"## distbench: {escape_markdown(info.suite_name)}",
        f"**{escape_markdown(best.headline)}**",
        bullets(best.reasons),
        details(f"All {len(run.cases)} cases", overview.overview_table(run).to_markdown()),
        details("Key findings", bullets([*notes, *key_findings(run)])),
        *(details(kind.capitalize(), bullets(verdict_sentences(run, kind))) for kind in run.verdict_kinds),
        details("Failed or unsupported here", bullets(failure_sentences(run))),
        f"<sub>run {escape_markdown(info.run_id)}, {escape_markdown(info.created)}, distbench "
        f"{escape_markdown(info.version)}; "
        "speeds: mean over trials ± half the 95% interval; peak memory: largest trial; "
        "else median ± half the range; "
        "↑ higher, ↓ lower is better</sub>",
    )


def view_markdown(sheet: Table) -> str:
    """One view: its title, table, caption and notes."""
    return join_blocks(
        f"### {escape_markdown(sheet.title)}",
        sheet.to_markdown(),
        bullets(sheet.notes),
        f"<sub>{escape_markdown(sheet.caption)}</sub>",
    )

"""A gate's result as annotations of a GitHub workflow."""

from __future__ import annotations

from collections.abc import Iterator

from distbench.analysis.text import one_line
from distbench.gate.verdicts import FAILING, Result
from distbench.gate.view import case_sentences

_ANNOTATED = {"inconclusive": "warning", "incomparable": "warning", "improved": "notice"}


def commands(result: Result) -> Iterator[str]:
    """Yield a workflow command for each case that did not simply pass (docs.github.com/actions)."""
    for case in result.cases:
        level = "error" if case.word in FAILING else _ANNOTATED.get(case.word)
        if level:
            said = "\n".join(case_sentences(case)) or case.said
            title = _property(f"distbench: {case.word}: {one_line(case.case)}")
            yield f"::{level} title={title}::{_data(said)}"


def _data(told: str) -> str:
    return told.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(told: str) -> str:
    return _data(told).replace(":", "%3A").replace(",", "%2C")

"""What a gate may demand of the candidate besides its numbers."""

from __future__ import annotations

from distbench.analysis.convergence import FAILING as FAILED_TO_CONVERGE
from distbench.analysis.equivalence import DIFFERS, NOT_CHECKED
from distbench.analysis.summary import CaseSummary
from distbench.analysis.verdicts import sentence
from distbench.gate.verdicts import Finding, Word
from distbench.spec.gate import Gate


def demanded(row: CaseSummary | None, rules: Gate) -> list[Finding]:
    """Return the findings that *rules* demand of a case."""
    found = [equivalence(row)] if rules.equivalence == "required" else []
    return found + ([convergence(row)] if rules.convergence == "required" else [])


def equivalence(row: CaseSummary | None) -> Finding:
    """Return whether a case is the same training as its reference, where that is required."""
    verdict = row.verdict if row else None
    if verdict is None or verdict.word == NOT_CHECKED:
        return Finding("equivalence", "missing", sentence(verdict) if verdict else "it was not checked")
    word: Word = "invalid" if verdict.word == DIFFERS else "pass"
    return Finding("equivalence", word, sentence(verdict))


def convergence(row: CaseSummary | None) -> Finding:
    """Return whether a case converges as its reference does, where that is required."""
    found = row.convergence if row else None
    if found is None:
        return Finding("convergence", "missing", "it was not trained to a target: the suite has no converge")
    if found.word in FAILED_TO_CONVERGE:
        return Finding("convergence", "invalid", found.word)
    return Finding("convergence", "inconclusive" if found.word == "inconclusive" else "pass", found.word)

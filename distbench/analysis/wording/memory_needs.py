"""Memory that cases need which ran out of it, by formulas, as sentences."""

from __future__ import annotations

from collections.abc import Sequence

from distbench.analysis.readable_cases import unreadable_reason
from distbench.core.case import Case
from distbench.core.text import one_line
from distbench.core.units import format_bytes
from distbench.prediction import memory_advice, predict_memory


def memory_need_sentences(cases: Sequence[Case]) -> list[str]:
    """Predicted peak of each of *cases*, and of changes that need less; nothing of one without a formula."""
    return [sentence for case in cases if (sentence := _sentence(case))]


def _sentence(case: Case) -> str:
    if unreadable_reason(case):
        return ""
    found = predict_memory(case)
    if isinstance(found, str):
        return ""
    changes = [f"{text} needs {format_bytes(peak.value)}" for text, peak in memory_advice(case, None)]
    less = f"; {', '.join(changes)}" if changes else ""
    needs = f"a rank of {one_line(case.name)} needs {format_bytes(found.peak.value)} for tensors"
    return f"By formulas {needs}{less}."

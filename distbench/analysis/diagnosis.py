"""What is worth minding about how a case spent its time and moved its bytes, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from distbench.analysis.parity import marked_names
from distbench.analysis.ranks import STRAGGLER, work
from distbench.analysis.summary import CaseSummary
from distbench.analysis.text import listed
from distbench.analysis.volume import EXPLAINED, volume
from distbench.metrics._drift import UNSETTLED_CHANGE, UNSETTLED_P


def diagnosis(cases: Sequence[CaseSummary]) -> list[str]:
    """Return what to mind about the measured *cases*; nothing if nothing stands out."""
    measured = [row for row in cases if row.detail is not None]
    names = marked_names(measured, cases)
    said = [
        _listed(_unsettled, "steps were still becoming faster while they were timed; raise measure.warmup"),
        _listed(
            _reduces_whole,
            "gradients are all-reduced where the textbook of the strategy reduce-scatters them: as much "
            "on the wire as DDP, and a gather on top",
        ),
        _listed(
            _unexplained, "the bytes moved differ from the textbook's; distbench show --view communication"
        ),
    ]
    found = [sentence for make in said if (sentence := make(measured, names))]
    return found + [sentence for row in measured if (sentence := _straggler(row, names[row.case.id]))]


def _listed(
    check: Callable[[CaseSummary], bool], text: str
) -> Callable[[Sequence[CaseSummary], dict[str, str]], str]:
    def sentence(rows: Sequence[CaseSummary], names: dict[str, str]) -> str:
        found = [names[row.case.id] for row in rows if check(row)]
        return f"{listed(found)}: {text}." if found else ""

    return sentence


def _unsettled(row: CaseSummary) -> bool:
    p, drift = row.values.get("drift_p"), row.values.get("drift")
    return bool(p and drift and p.low < UNSETTLED_P and drift.low < UNSETTLED_CHANGE)


def _reduces_whole(row: CaseSummary) -> bool:
    found = volume(row.detail) if row.detail else None
    return found is not None and found.reduces_whole


def _unexplained(row: CaseSummary) -> bool:
    found = volume(row.detail) if row.detail else None
    return found is not None and found.unexplained > EXPLAINED


def _straggler(row: CaseSummary, name: str) -> str:
    imbalance = row.values.get("imbalance")
    if row.detail is None or imbalance is None or imbalance.value < STRAGGLER:
        return ""
    own = work(row.detail)
    if not own:
        return ""
    slowest = max(own, key=lambda rank: own[rank])
    return f"{name}: rank {slowest} works {imbalance.value:.2f} times as long as the median rank."

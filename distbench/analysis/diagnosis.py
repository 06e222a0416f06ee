"""What stands out about how a case spent its time and moved its bytes, in sentences."""

from __future__ import annotations

from distbench.analysis.ranks import STRAGGLER, work
from distbench.analysis.run import AnalysedRun
from distbench.analysis.summary import CaseSummary
from distbench.analysis.text import listed
from distbench.analysis.volume import EXPLAINED, volume
from distbench.metrics.steptime.drift import UNSETTLED_CHANGE, UNSETTLED_P


def diagnosis(run: AnalysedRun) -> list[str]:
    """What stands out about the measured cases of *run*."""
    measured = [row for row in run.cases if row.detail is not None]
    names = run.names(measured)
    sentences = [
        f"{listed(affected)}: {text}."
        for check, text in _CHECKS
        if (affected := [names[row.case.id] for row in measured if check(row)])
    ]
    return sentences + [sentence for row in measured if (sentence := _straggler(row, names[row.case.id]))]


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
    return f"{name}: straggler: rank {slowest} works {imbalance.value:.2f}x as long as the median rank."


_CHECKS = (
    (_unsettled, "steps were still speeding up during timing; increase measure.warmup"),
    (
        _reduces_whole,
        "gradients are all-reduced instead of reduce-scattered: the same traffic as "
        "plain data parallelism, plus an all-gather",
    ),
    (_unexplained, "the bytes moved differ from theory; see distbench show --view communication"),
)

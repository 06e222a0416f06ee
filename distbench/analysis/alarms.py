"""What a run must not end well with, although its trials ran to their end."""

from __future__ import annotations

from collections.abc import Sequence

from distbench.analysis.checkpoint import broken
from distbench.analysis.convergence import FAILING
from distbench.analysis.summary import CaseSummary
from distbench.analysis.text import listed, one_line
from distbench.record import Record, of_kind


def alarms(cases: Sequence[CaseSummary], records: Sequence[Record]) -> list[str]:
    """Return a sentence for each way in which a case is not the training that it should be."""
    return [*_other_training(cases), *_not_converging(cases), *broken(of_kind(records, "checkpoint"))]


def _other_training(cases: Sequence[CaseSummary]) -> list[str]:
    names = [one_line(row.case.name) for row in cases if row.differs]
    return [f"not the same training as the reference: {listed(names)}"] if names else []


def _not_converging(cases: Sequence[CaseSummary]) -> list[str]:
    return [
        f"convergence: {one_line(row.case.name)}: {row.convergence.word}: {row.convergence.why}"
        for row in cases
        if row.convergence and row.convergence.word in FAILING
    ]

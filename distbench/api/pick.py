"""The case to train with under constraints, with the reasons."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.choice import (
    DEFAULT_MAX_SLOWDOWN,
    DEFAULT_TIE_MARGIN,
    GOALS,
    Candidate,
    Requirements,
    Selection,
    select_case,
)
from distbench.analysis.run import RunAnalysis
from distbench.analysis.wording.recommendation import Recommendation, recommend
from distbench.api.frames import table_frame
from distbench.core.errors import UsageError, did_you_mean
from distbench.core.units import parse_bytes, parse_fraction
from distbench.report.fragment import fragment
from distbench.report.recommendation import candidate_table


@dataclass(frozen=True, repr=False)
class Pick:
    """A recommendation; text and HTML of it say why."""

    case: CaseSummary | None
    """The case to train with; None if none is eligible, for the reason in ``headline``."""
    recommendation: Recommendation
    selection: Selection
    """The choice in numbers: ties, order, and the reason against each other case."""

    @property
    def headline(self) -> str:
        """The recommendation in one sentence."""
        return self.recommendation.headline

    @property
    def reasons(self) -> tuple[str, ...]:
        """Sentences: what the case beats or ties with, and what would change the choice."""
        return self.recommendation.reasons

    def table(self, as_: str | None = None) -> Any:
        """Eligible cases, best first: tokens/s with the ends of its 95% interval, memory in bytes.

        Args:
            as_: As for ``Run.table``.

        Raises:
            UsageError: no such form, or its library is not installed.
        """
        table = candidate_table(self.selection)
        # its ends are columns of their own
        names = [each.name for each in table.fields if each.name != "interval"]
        return table_frame(table.select_columns(*names), as_)

    def __repr__(self) -> str:
        return "\n".join([self.headline, *(f"- {reason}" for reason in self.reasons)])

    def _repr_html_(self) -> str:
        return fragment(candidate_table(self.selection), [self.headline, *self.reasons])


def pick_case(
    run: RunAnalysis,
    *,
    goal: str = "throughput",
    memory: str | float | None = None,
    devices: int | None = None,
    precision: str | None = None,
    work: str | None = None,
    avoid: str | Sequence[str] = (),
    within: str | float = DEFAULT_MAX_SLOWDOWN,
    margin: str | float = DEFAULT_TIE_MARGIN,
    prefix: str = "",
) -> Pick:
    """Recommend a case of *run*.

    Args:
        prefix: Put before the name of an argument in messages: ``--`` on the command line.

    Raises:
        UsageError: an argument is invalid, or no case of the run has such a value.
    """
    if goal not in GOALS:
        raise UsageError(f"{prefix}goal = {goal!r}: {did_you_mean(goal, GOALS)}")
    every = run.candidates
    wish = Requirements(
        goal=goal,
        memory=None if memory is None else _parsed(f"{prefix}memory", memory, _byte_count),
        devices=devices,
        precision=precision,
        work=work,
        avoid=(avoid,) if isinstance(avoid, str) else tuple(avoid),
        within=_parsed(f"{prefix}within", within, lambda part: parse_fraction(str(part))),
        margin=_parsed(f"{prefix}margin", margin, lambda part: parse_fraction(str(part))),
    )
    _check_available(every, wish, prefix)
    chosen = select_case(every, wish)
    case = next((row for row in run.cases if chosen.pick and row.case.id == chosen.pick.id), None)
    return Pick(case, recommend(run, wish), chosen)


def _check_available(every: Sequence[Candidate], wish: Requirements, prefix: str) -> None:
    """Raise UsageError if *wish* has a value that none of the candidates *every* has."""
    for key in ("devices", "precision", "work"):
        value, known = getattr(wish, key), sorted({getattr(candidate, key) for candidate in every})
        if value is not None and value not in known:
            available = ", ".join(map(str, known)) or "none"
            raise UsageError(f"{prefix}{key} = {value!r}: no case of this run has it; available: {available}")
    labels = sorted({candidate.label for candidate in every})
    for glob in wish.avoid:
        if not fnmatch.filter(labels, glob):
            raise UsageError(
                f"{prefix}avoid = {glob!r}: matches no strategy of this run; {did_you_mean(glob, labels)}"
            )


def _parsed(name: str, value: str | float, parse: Callable[[str | float], float]) -> float:
    try:
        return parse(value)
    except ValueError as error:
        raise UsageError(f"{name} = {value!r}: {error}") from None


def _byte_count(size: str | float) -> float:
    if isinstance(size, str):
        return parse_bytes(size)
    if not 0 < size < math.inf:
        raise ValueError("expected a number of bytes above 0, or a size with a unit, such as 24GiB")
    return float(size)

"""Base classes for the results of a kind of job: verdicts, losses, follow-up trials and curves.

A plug-in of ``jobs`` has its subclass of ``JobResults`` in its ``results.py``, where the registry finds it.
``core.job.JobKind`` has everything that is needed before there are records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from distbench.core import registry
from distbench.core.case import Case
from distbench.core.job import JobKind, PlannedTrial
from distbench.core.serialization import replace_nonfinite
from distbench.record import Record
from distbench.tables.table import Table

if TYPE_CHECKING:
    import numpy as np

Gravity = Literal["ok", "unknown", "bad"]
INCONCLUSIVE = "inconclusive"
"""Word of a judgement that was made without a result. Any other unknown could not be attempted."""


class Evidence(Protocol):
    """Facts that a verdict rests on."""

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON types."""


@dataclass(frozen=True)
class Verdict:
    """Result of judging one case."""

    kind: str
    """Plug-in of the kind of job, such as ``equivalence``, or ``LOSS_VERDICT``."""
    word: str
    """One of the few words of the kind, for programs."""
    gravity: Gravity
    """bad: the run ends with exit code 1, and a gate that requires the kind fails."""
    sentence: str
    """The verdict for people, without the case name."""
    detail: Evidence | None = None
    invalidates: bool = False
    """True if the numbers of the case may not be compared: it is a different training."""
    confirms_quality: bool = False
    """True if it shows that the case trains as well as its reference; then a case that differs by design may
    be recommended."""
    confirms_by_outcome: bool = False
    """True if it rests on the final quality of the training, which need not match in any step."""
    remarks: tuple[str, ...] = ()
    """Sentences for people that apply to several cases alike; a run prints each once."""
    extent: tuple[float, str] | None = None
    """Distance of the case from its reference, and the scale of that fraction; summarizes several good
    verdicts of one word."""

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON types; null for infinite values."""
        return {
            "word": self.word,
            "gravity": self.gravity,
            "sentence": self.sentence,
            "detail": replace_nonfinite(self.detail.to_json()) if self.detail else None,
        }


@dataclass(frozen=True, eq=False)
class ReferenceLosses:
    """Losses of a trusted training from its first step on, and the deviation that rounding causes."""

    name: str
    """Display name: ``single/ws1 of the check``."""
    losses: np.ndarray
    """Loss of each step (steps,); NaN where unknown."""
    limits: np.ndarray | None = None
    """Deviation that rounding explains at each step (steps,), in the unit of the loss; None: use
    ``rounding_bounds``."""
    case_id: str = ""
    """Id of the case whose timed trials these are; empty: another kind of job vouches for them."""
    observed_spread: np.ndarray | None = None
    """Largest deviation of this training by rounding that was observed up to each step (steps,), in the unit
    of the loss; None if nobody measured it."""


@dataclass(frozen=True)
class CurvePoint:
    """Values of one step."""

    step: int
    """The first step of a training, or of a trial's warm-up, is 1."""
    values: dict[str, float]
    time: float | None = None
    """Seconds since 1970: start of the training plus its seconds of training so far."""


@dataclass(frozen=True)
class JobResults:
    """Judge and read the records of one kind of job; methods are called only if there are records."""

    kind: JobKind

    def judge(self, settings: Mapping[str, Any], records: Sequence[Record]) -> dict[str, Verdict]:
        """Verdict by case id on each case in *records*; none for a kind that judges nothing.

        *settings* is the section of the suite as stored in the run.
        """
        return {}

    def expected_losses(self, records: Sequence[Record]) -> dict[str, ReferenceLosses]:
        """Losses, by case id, of trainings in *records* that the timed trials must reproduce.

        A kind that trains no such reference leaves this out.
        """
        return {}

    def perturbed_losses(self, records: Sequence[Record]) -> dict[str, Sequence[np.ndarray]]:
        """Losses (steps,), by case id, of trainings in *records* from weights perturbed by rounding.

        They bound the deviation of timed trials by rounding. A kind that perturbs no weights leaves this out.
        """
        return {}

    def follow_up_trials(
        self, section: Any, cases: Sequence[Case], records: Sequence[Record]
    ) -> Iterable[PlannedTrial]:
        """Further trials of *cases* that *records*, all records of a run so far, call for.

        Called again after these have ended; trials that already exist are not repeated.
        """
        return ()

    def run_json(self, records: Sequence[Record]) -> dict[str, Any]:
        """Keys that ``show --json`` has for *records* as a whole, besides the verdicts."""
        return {}

    def comparison(self, before: Sequence[Record], after: Sequence[Record]) -> Table | None:
        """Table that ``compare`` shows for the records of two runs; None if there is none."""
        return None

    def curve(self, record: Record) -> tuple[str, Sequence[CurvePoint]]:
        """Name of a trial within its case, such as ``seed 3``, and its curve; by default none.

        Experiment trackers show it.
        """
        return "", ()


def job_results() -> dict[str, JobResults]:
    """Judges of results by the name of their plug-in, in the order of kinds.

    Raises:
        UsageError: a plug-in can't be imported.
    """
    kinds: dict[str, JobKind] = {
        name: registry.load_plugin("jobs", name)() for name in registry.plugin_names("jobs")
    }
    ordered = sorted(kinds.items(), key=lambda item: (item[1].order, item[0]))
    return {
        name: (registry.load_submodule_plugin("jobs", name, "results", JobResults) or JobResults)(kind)
        for name, kind in ordered
    }

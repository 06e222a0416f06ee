"""The seam of the results of a kind of job: verdicts, losses, follow-ups and curves.

A plug-in of ``jobs`` has its subclass of ``JobResults`` in its ``results.py``, which the registry finds. What
is asked before there are records is in ``core.job.JobKind``.
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
"""Word of a judgement that was tried and can't tell. Any other unknown could not be tried."""


class Evidence(Protocol):
    """What a verdict rests on."""

    def to_json(self) -> dict[str, Any]:
        """The same as plain JSON types."""


@dataclass(frozen=True)
class Verdict:
    """What the judgement of one case comes to."""

    kind: str
    """Plug-in of the kind of job, such as ``equivalence``, or ``LOSSES``."""
    word: str
    """One of the few words of the kind, for programs."""
    gravity: Gravity
    """bad: the run ends with exit code 1, and a gate that requires the kind fails."""
    sentence: str
    """The verdict for people, without the name of the case."""
    detail: Evidence | None = None
    invalidates: bool = False
    """Whether the numbers of the case may not be compared: it is a different training."""
    confirms_quality: bool = False
    """Whether it shows that the case trains as well as its reference: then a case may be recommended that is
    another training by design."""
    confirms_by_outcome: bool = False
    """Whether what vouches is how well the training ended, so that it need not be the same in any step."""
    remarks: tuple[str, ...] = ()
    """Sentences for people that hold for several cases alike, so that a run says each of them once."""
    extent: tuple[float, str] | None = None
    """How far the case is from its reference, and what that is a fraction of: what several good verdicts of
    one word are summed up by."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, null for what is infinite."""
        return {
            "word": self.word,
            "gravity": self.gravity,
            "sentence": self.sentence,
            "detail": replace_nonfinite(self.detail.to_json()) if self.detail else None,
        }


@dataclass(frozen=True, eq=False)
class ReferenceLosses:
    """Losses of a training that is trusted, from its first step on, and how far rounding leads from them."""

    name: str
    """What it is, for people: ``single/ws1 of the check``."""
    losses: np.ndarray
    """Of each step (steps,); NaN where unknown."""
    limits: np.ndarray | None = None
    """Deviation that rounding explains at each step (steps,), in the unit of the loss; None: ``tolerance``
    says."""
    case_id: str = ""
    """Of the case whose timed trials these are; empty: another kind of job vouches for them."""
    observed_spread: np.ndarray | None = None
    """How far rounding was seen to lead this training up to each step (steps,), in the unit of the loss;
    None: nobody has looked."""


@dataclass(frozen=True)
class CurvePoint:
    """The values of one step."""

    step: int
    """The first step of a training, or of a trial's warm-up, is 1."""
    values: dict[str, float]
    time: float | None = None
    """Seconds since 1970: start of the training plus its seconds of training so far."""


@dataclass(frozen=True)
class JobResults:
    """Judge and read the records of one kind of job; each method is asked only if there are some."""

    kind: JobKind

    def judge(self, settings: Mapping[str, Any], records: Sequence[Record]) -> dict[str, Verdict]:
        """Verdict on each case that *records* are about, by case id; none of a kind that judges nothing.

        *settings* is the section of the suite as the run stored it.
        """
        return {}

    def expected_losses(self, records: Sequence[Record]) -> dict[str, ReferenceLosses]:
        """Losses, by case id, of trainings in *records* that the timed trials must have too.

        A kind that trains no such reference leaves this out.
        """
        return {}

    def perturbed_losses(self, records: Sequence[Record]) -> dict[str, Sequence[np.ndarray]]:
        """Losses (steps,), by case id, of trainings in *records* from weights perturbed by rounding.

        They bound how far rounding leads the timed trials. A kind that perturbs no weights leaves this out.
        """
        return {}

    def follow_up_trials(
        self, section: Any, cases: Sequence[Case], records: Sequence[Record]
    ) -> Iterable[PlannedTrial]:
        """Trials of *cases* that *records*, all that a run has made so far, give reason for.

        Asked again after these have ended; those that were made already are not made again.
        """
        return ()

    def run_json(self, records: Sequence[Record]) -> dict[str, Any]:
        """Keys that ``show --json`` has of *records* as a whole, besides the verdicts."""
        return {}

    def comparison(self, before: Sequence[Record], after: Sequence[Record]) -> Table | None:
        """Table that ``compare`` shows of the records of two runs; None: nothing."""
        return None

    def curve(self, record: Record) -> tuple[str, Sequence[CurvePoint]]:
        """Name of a trial among those of its case, such as ``seed 3``, and its curve; by default none.

        Experiment trackers show it.
        """
        return "", ()


def job_judges() -> dict[str, JobResults]:
    """Readers of results by the name of their plug-in, in the order of kinds.

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

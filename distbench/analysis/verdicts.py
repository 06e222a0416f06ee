"""What a judgement comes to, in one shape for all kinds of jobs: exit codes, gates, pages and JSON follow.

Each kind of job judges its own records; here the kinds are asked. What is measured is judged beside them, for
it is held against the others' references.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from distbench.analysis.loss_deviation import BY_DESIGN, SAME, Expected, TimedLosses
from distbench.analysis.timed_losses import timed_losses
from distbench.core import registry
from distbench.core.job import MEASURE
from distbench.core.serialization import finite
from distbench.record import Record, of_kind
from distbench.record.untrusted import untrusted_records

if TYPE_CHECKING:
    import numpy as np

    from distbench.jobs.base import Kind

Gravity = Literal["ok", "unknown", "bad"]
LOSSES = "losses"
"""Kind of the verdicts on what was timed, which nobody has to ask for and no plug-in makes."""
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
    voids: bool = False
    """Whether the numbers of the case may not be compared: it is a different training."""
    vouches: bool = False
    """Whether it shows that the case trains as well as its reference: then a case may be recommended that is
    another training by design."""
    by_outcome: bool = False
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
            "detail": finite(self.detail.to_json()) if self.detail else None,
        }


def vouched(verdicts: Mapping[str, Verdict]) -> bool:
    """Whether *verdicts* on a case, by kind, show that it trains as well as its reference.

    A bad one speaks against that whatever the others say. Timed steps that parted from their reference show
    that a check saw too little, and leave only what vouches by the outcome.
    """
    if any(verdict.gravity == "bad" for verdict in verdicts.values()):
        return False
    timed = verdicts.get(LOSSES)
    has_parted = timed is not None and timed.word == BY_DESIGN
    return any(each.vouches and (each.by_outcome or not has_parted) for each in verdicts.values())


def judges() -> dict[str, Kind]:
    """Kinds of jobs by the name of their plug-in, in their order."""
    kinds: dict[str, Kind] = {name: registry.load("jobs", name)() for name in registry.names("jobs")}
    return dict(sorted(kinds.items(), key=lambda item: (item[1].order, item[0])))


def verdicts(suite: Mapping[str, Any], records: Sequence[Record]) -> dict[str, dict[str, Verdict]]:
    """Verdicts by case id, then by kind, of the *records* of a run of the resolved *suite*.

    Raises:
        RecordError: the records of a kind of job do not fit together.
    """
    by_case: dict[str, dict[str, Verdict]] = {}
    for kind, judge in judges().items():
        if own := of_kind(records, judge.name):
            with untrusted_records(f"the records in {judge.folder}"):
                judged = judge.judge(suite.get(judge.name) or {}, own)
            for case_id, verdict in judged.items():
                by_case.setdefault(case_id, {})[kind] = verdict
    for case_id, found in judged_losses(records).items():
        by_case.setdefault(case_id, {})[LOSSES] = _of_timed(found)
    return by_case


def judged_losses(records: Sequence[Record]) -> dict[str, TimedLosses]:
    """What the losses of the timed trials among *records* say, by case id, with what all kinds know of them.

    Raises:
        RecordError: the records of a kind of job do not fit together.
    """
    expected: dict[str, Expected] = {}
    for judge in judges().values():
        if own := of_kind(records, judge.name):
            with untrusted_records(f"the records in {judge.folder}"):
                expected |= judge.expected_losses(own)
    return timed_losses(of_kind(records, MEASURE), expected, moved_losses(records))


def moved_losses(records: Sequence[Record]) -> dict[str, Sequence[np.ndarray]]:
    """Losses (steps,) of trainings from weights moved by rounding, by case id, that all kinds know of.

    Raises:
        RecordError: the records of a kind of job do not fit together.
    """
    moved: dict[str, Sequence[np.ndarray]] = {}
    for judge in judges().values():
        if own := of_kind(records, judge.name):
            with untrusted_records(f"the records in {judge.folder}"):
                moved |= judge.moved_losses(own)
    return moved


def _of_timed(found: TimedLosses) -> Verdict:
    gravity: Gravity = "bad" if found.is_other else "ok" if found.word in (SAME, BY_DESIGN) else "unknown"
    extent = (found.furthest, "of the allowed deviation")
    remarks = (found.remark,) if found.remark else ()
    sentence, voids = found.sentence(), found.is_other
    return Verdict(LOSSES, found.word, gravity, sentence, found, voids=voids, extent=extent, remarks=remarks)

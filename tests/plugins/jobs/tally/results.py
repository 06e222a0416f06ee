"""The verdict on a tally."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.job_results import JobResults, Verdict
from distbench.record import Record


@dataclass(frozen=True)
class TallyResults(JobResults):
    """Judge whether every rank took each step."""

    def judge(self, settings: Mapping[str, Any], records: Sequence[Record]) -> dict[str, Verdict]:
        verdicts = {}
        for record in records:
            taken, asked = record.values.get("tallied_steps", 0), settings["steps"] * record.case.world_size
            word, gravity = ("complete", "ok") if taken == asked else ("short", "bad")
            sentence = f"{word}: {taken:g} of {asked} steps"
            verdicts[record.case_id] = Verdict("tally", word, gravity, sentence)
        return verdicts

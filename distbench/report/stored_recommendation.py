"""``answer.json``: the recommendation of a run next to its report, for lists of many runs.

Computing it takes about a second for a run of some 30 trials; reading it takes a millisecond.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from distbench.analysis.choice import Requirements, select_case
from distbench.analysis.run import RunAnalysis
from distbench.analysis.wording.recommendation import recommend
from distbench.core.bounds import Name
from distbench.core.errors import RecordError
from distbench.core.serialization import decode
from distbench.record import MAX_JSON_BYTES, read_json
from distbench.record.record_reader import RECORD_FILE
from distbench.record.run_folder import Run, write_json
from distbench.system.files import sha256_bounded

FILE = "answer.json"


@dataclass(frozen=True)
class StoredRecommendation:
    """Recommendation of ``distbench pick`` for a run without further requirements."""

    records: int
    """Number of trials that it rests on; if the run has a different number now, it is out of date."""
    pick: Name
    """Name of the recommended case; empty if there is none."""
    headline: Name
    digest: str = ""
    """Digest of the records that it rests on (``digest_of``); if theirs differs now, it is out of date.
    Empty: stored by a version that only counted them."""

    @classmethod
    def of(cls, run: RunAnalysis) -> StoredRecommendation:
        """The recommendation of *run*."""
        pick = select_case(run.candidates, Requirements()).pick
        damaged = sum(each.is_trial for each in run.damaged)
        return cls(len(run.records) + damaged, pick.name if pick else "", recommend(run).headline)

    def write(self, folder: Path) -> None:
        """Write it into the *folder* of its run.

        Raises:
            InfrastructureError: the file can't be written.
        """
        digest = digest_of(Run(folder).recorded_trials())
        write_json(folder / FILE, dataclasses.asdict(self) | {"digest": digest})


def digest_of(trials: Sequence[Path]) -> str:
    """SHA-256 of the records in the folders *trials*, in hex digits; an unreadable record counts as empty."""
    made = hashlib.sha256()
    for trial in sorted(trials):
        made.update("/".join(trial.parts[-3:]).encode())
        with suppress(OSError):
            made.update(sha256_bounded(trial / RECORD_FILE, MAX_JSON_BYTES).encode())
    return made.hexdigest()


def read_recommendation(folder: Path, trials: Sequence[Path]) -> tuple[StoredRecommendation | None, str]:
    """Recommendation of the run in *folder* with its *trials*, or None with the reason."""
    file = folder / FILE
    if not file.exists():
        return None, "not stored"
    try:
        stored = decode(StoredRecommendation, read_json(file), str(file))
    except RecordError as error:
        return None, str(error)
    if stored.records != len(trials):
        return None, "trials were added since it was stored"
    if stored.digest and stored.digest != digest_of(trials):
        return None, "trials have changed since it was stored"
    return stored, ""

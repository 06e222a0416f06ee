"""Between ``distbench measure`` and a script's ranks: settings in a variable, files in the trial's folder.

A rank leaves the files of any trial (``trial_files``): its result so far, then its result. What only a script
has is the ``script`` of a result, a ``ScriptReport``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from distbench.core.serialization import decode

SETTINGS_VARIABLE = "DISTBENCH_MEASURE"
"""Variable with the ``ScriptSettings`` as JSON; without it, nothing is measured."""
INJECTED_FOLDER = Path(__file__).parents[1] / "worker" / "scripts" / "injected"
"""Folder for ``PYTHONPATH`` with a module that Python runs at its start."""

COMPLETE = "complete"
"""``ScriptReport.ended`` of a rank that has measured everything."""


@dataclass(frozen=True)
class ScriptSettings:
    """Settings of the ranks of a script."""

    folder: str
    """Folder of the trial."""
    warmup: int = 10
    """Steps before the timed ones."""
    steps: int = 50
    """Timed steps."""
    profile_steps: int = 3
    """Steps under the profiler, after the timed ones and the counted one."""
    stops: bool = True
    """True if the script ends once all of its ranks have left their results."""

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Variables that measure the ranks among processes with the variables *environment*."""
        paths = [str(INJECTED_FOLDER), *filter(None, [environment.get("PYTHONPATH", "")])]
        return {SETTINGS_VARIABLE: json.dumps(asdict(self)), "PYTHONPATH": os.pathsep.join(paths)}

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> ScriptSettings | None:
        """Settings in the variables *environment*; None if nothing is to be measured.

        Raises:
            RecordError: the variable holds something else.
        """
        text = environment.get(SETTINGS_VARIABLE)
        return decode(cls, json.loads(text), SETTINGS_VARIABLE) if text else None


@dataclass
class ScriptReport:
    """Report of a rank on the script, beside the results of any rank."""

    rank: int
    world_size: int
    host: str
    pid: int
    nodes: list[int]
    """Number of the node of each rank."""
    argv: list[str]
    """Command line of the process."""
    case: dict[str, Any] = field(default_factory=dict)
    """The training as a case (``Case.to_json``); empty while it is not known."""
    tokens_per_sample: float | None = None
    """None: the inputs don't tell."""
    samples_per_step: float | None = None
    """Samples that the rank trains on in a step; None: unknown."""
    calls: list[list[dict[str, Any]]] = field(default_factory=list)
    """Collectives of each counted step, in order (``CollectiveCall``)."""
    trace: str = ""
    """Name of the file with the profiled steps; empty: there is none."""
    rows: list[list[str]] = field(default_factory=list)
    """Hashes of the rows of each observed batch."""
    shares_rows: bool = False
    """True if ranks train on the same rows by design: they split the model."""
    parameter_digest: str = ""
    """Digest of the trained parameters after the measured steps; empty if each rank has only a part."""
    unused_parameters: list[str] = field(default_factory=list)
    """Trained parameters that had no gradient when the optimizer updated them."""
    value_reads: list[dict[str, Any]] = field(default_factory=list)
    """Lines that read a value of a tensor in the counted step: ``place``, ``calls``."""
    backward_passes: float | None = None
    """Backward passes in a step; None: unknown."""
    gradient_bytes: int | None = None
    """Bytes of the gradients that replicas reduce; None: not replicas."""
    has_norm_of_part: bool = False
    """True if its gradient norms are those of its own shards, of which no other rank has any."""
    ended: str = ""
    """How the measurement ended: ``complete``, or what ended it early."""
    error: str = ""
    """Exception that ended the script, with file and line; empty: none."""
    fault: str = ""
    """Error of distbench itself, which ended the measurement but not the script; empty: none."""

    @classmethod
    def from_json(cls, plain: Mapping[str, Any], source: str) -> ScriptReport:
        """Decode the output of ``dataclasses.asdict``.

        Raises:
            RecordError: it is something else.
        """
        return decode(cls, plain, source)


def note_file(folder: Path, pid: int) -> Path:
    """File with the reason why process *pid* could not be measured."""
    return folder / f"process{pid}.note"


def claim_file(folder: Path, rank: int) -> Path:
    """File with the number of the process that is measured as *rank*: the first one that trains."""
    return folder / f"rank{rank}.pid"

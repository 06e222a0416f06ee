"""What the doctor says: what was looked at, where, what was found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["ok", "warning", "problem"]
"""A problem stops runs or makes their numbers wrong; a warning may."""


@dataclass(frozen=True)
class Diagnosis:
    """One finding."""

    check: str
    """What was looked at: ``nodes``, ``clock``, ``links``, ..."""
    grade: Severity
    what: str
    where: str = ""
    """Node or link; empty: all of it."""
    remedy: str = ""
    """What to do; empty where all is well."""

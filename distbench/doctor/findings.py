"""Diagnosis: check, place, severity, finding and remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["ok", "warning", "problem"]
"""A problem stops runs or makes their numbers wrong; a warning may."""


@dataclass(frozen=True)
class Diagnosis:
    """One finding."""

    check: str
    """Subject of the check: ``nodes``, ``clock``, ``links``, ..."""
    grade: Severity
    what: str
    where: str = ""
    """Node or link; empty: all of them."""
    remedy: str = ""
    """Advice; empty where all is well."""

"""What can go wrong that a user can cause or must know, and the exit code of each.

DistbenchError
├── UsageError              exit 2: something asked for can't be; nothing was launched
│   ├── SuiteError          every mistake of a suite file at once
│   └── RecordError         a run or record that can't be read (corrupt, too old, too new)
└── InfrastructureError     exit 4: the machine failed us (full disk, folder not writable)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


class DistbenchError(Exception):
    """Base of every error that the command line shows as a message and not as a traceback."""

    exit_code = 1


class UsageError(DistbenchError):
    """Something that was asked for can't be done; known before anything was launched."""

    exit_code = 2


class RecordError(UsageError):
    """A run folder or a record that can't be read."""


class InfrastructureError(DistbenchError):
    """The machine, not the suite, is at fault: disk full, folder not writable."""

    exit_code = 4


@dataclass(frozen=True)
class Mistake:
    """One thing wrong in a suite: where it stands, what was found, and what to do."""

    message: str
    key: str = ""
    value: object = None
    file: str = ""
    line: int | None = None

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        what = f"{self.key} = {_shorten(self.value)}" if self.value is not None else self.key
        return ": ".join(part for part in (place, what, self.message) if part)


class SuiteError(UsageError):
    """All mistakes of one suite, each with file, line, key and value."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


def did_you_mean(found: object, allowed: Iterable[str]) -> str:
    """Return ``"did you mean 'x'? Allowed: a, b"`` for the nearest allowed name."""
    names = sorted(allowed)
    near = difflib.get_close_matches(str(found), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}Allowed: {', '.join(names)}"


def _shorten(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"

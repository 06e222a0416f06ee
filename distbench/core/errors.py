"""Errors that a user can cause or must know of, with their exit codes.

DistbenchError
├── UsageError              exit 2: invalid request; nothing was launched
│   ├── SuiteError          all mistakes in a suite file at once
│   └── RecordError         a run or record that can't be read because it is damaged
│       ├── FormatError     ... or too old, or too new
│       └── ContentError    ... or its files differ from what it says, which is noticed when they are parsed
└── InfrastructureError     exit 4: machine failure (full disk, folder not writable)
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

EXIT_TIME_LIMIT = 75
"""Exit code of a run that ended before a time limit around it: to be resumed (EX_TEMPFAIL of sysexits.h)."""
EXIT_INTERRUPTED = 130
"""Exit code of a command that Ctrl-C stopped."""


class UnsupportedCase(Exception):
    """This model, engine or machine can't do what was requested of a rank; the message is the reason."""


class Mismatch(Exception):
    """A rank runs something other than was requested; the message lists every difference."""


class DistbenchError(Exception):
    """Base of every error that the command line shows as a message, without a traceback."""

    exit_code = 1


class UsageError(DistbenchError):
    """Invalid request, detected before anything was launched."""

    exit_code = 2


class RecordError(UsageError):
    """A run folder or a record that can't be read."""


class RecordFormatError(RecordError):
    """A file that is sound, but of a format that only another version of distbench reads."""


class RecordContentError(RecordError):
    """A file next to a record that has its checksum, but not the content that the record says."""


class InfrastructureError(DistbenchError):
    """Failure of the machine and not of the suite: disk full, folder not writable.

    Args:
        problem: What failed.
        advice: What to do about it.
    """

    exit_code = 4

    def __init__(self, problem: str, advice: str = "") -> None:
        self.problem = problem
        super().__init__("; ".join(filter(None, (problem, advice))))


class Null:
    """Marker of a null value where None means that there is no value."""


NULL = Null()


@dataclass(frozen=True)
class SuiteMistake:
    """One mistake in a suite: file, line, key, value, what is wrong and what to do."""

    message: str
    key: str = ""
    value: object = None
    file: str = ""
    line: int | None = None

    def __str__(self) -> str:
        # text without a file, such as a mapping in Python, has no lines that its author knows
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file
        what = f"{self.key} = {_short_repr(self.value)}" if self.value is not None else self.key
        return ": ".join(part for part in (place, what, self.message) if part)


class SuiteError(UsageError):
    """All mistakes in a suite, each with file, line, key and value."""

    def __init__(self, mistakes: Iterable[SuiteMistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


def did_you_mean(name: object, allowed: Iterable[str]) -> str:
    """Hint with the closest allowed name: ``"did you mean 'x'? Allowed: a, b"``."""
    names = sorted(allowed, key=_natural_sort_key)
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    # letters are exchanged more often than forgotten: ddp, not dp, for dpp
    same = [each for each in near if len(each) == len(str(name)) and set(each) == set(str(name))]
    hint = f"did you mean {(same or near)[0]!r}? " if near else ""
    return f"{hint}Allowed: {', '.join(names)}"


def _natural_sort_key(name: str) -> list[tuple[int, str]]:
    """Sort key that puts 3b before 70b."""
    parts = re.findall(r"\d+|\D+", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _short_repr(value: object, limit: int = 60) -> str:
    text = as_yaml(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def as_yaml(value: object) -> str:
    """*value* as one line of YAML in a suite."""
    if value is None or value is NULL:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {as_yaml(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_yaml, value))}]"
    return repr(value)

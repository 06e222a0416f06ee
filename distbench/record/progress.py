"""The progress log of a run: write events, follow them from elsewhere.

One event per line, in JSON; each session appends its own, from ``began`` to ``ended``. No number depends on
it, so nothing fails if it can't be written or read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from distbench.core.errors import EXIT_INTERRUPTED, DistbenchError, RecordError
from distbench.core.serialization import decode, parse_json
from distbench.core.text import truncate_middle
from distbench.system import files

PROGRESS_FILE = "progress.jsonl"
_MAX_BYTES = 64 << 20
_MAX_TEXT = 2000

ProgressEventKind = Literal[
    "began", "note", "item_started", "item_ended", "trial_started", "trial_ended", "ended"
]


@dataclass(frozen=True)
class ProgressEvent:
    """One progress event."""

    kind: ProgressEventKind
    text: str = ""
    """The note, or the name of the item or of the trial."""
    done: int = 0
    total: int = 0
    seconds: float | None = None
    """Duration of an item or a trial, or the remaining time when a trial starts; None: unknown."""
    status: str = ""
    """Status of a trial that has ended."""
    reason: str = ""
    noise: str = ""
    """Disturbance that keeps a measured trial out of comparisons; empty: none."""
    failed: bool = False
    code: int = 0
    """Exit code of the command, at the end of a session."""


@dataclass
class SessionResult:
    """Exit code of a session."""

    exit_code: int = 1
    """Exit code of the command; the default applies after an unexpected error."""


class ProgressLog:
    """Writes the events of one session."""

    def __init__(self, folder: Path) -> None:
        self._file, self._has_begun = folder / PROGRESS_FILE, False
        self._buffered: list[ProgressEvent] = [ProgressEvent("began")]

    def write(self, event: ProgressEvent) -> None:
        """Append *event*; a session begins with its first event that is not a note.

        Until then the folder may still turn out to be another's.
        """
        self._buffered.append(event)
        if event.kind != "note" or self._has_begun:
            self._has_begun = True
            for each in self._buffered:
                self._append(each)
            self._buffered.clear()

    @contextmanager
    def session(self) -> Iterator[SessionResult]:
        """Append the end of the session after the body, if it began: a refused command has no progress."""
        session = SessionResult()
        try:
            yield session
        except DistbenchError as error:
            session.exit_code = error.exit_code
            raise
        except KeyboardInterrupt:
            session.exit_code = EXIT_INTERRUPTED
            raise
        finally:
            if self._has_begun:
                self._append(ProgressEvent("ended", code=session.exit_code))

    def _append(self, event: ProgressEvent) -> None:
        # missing fields have their defaults
        plain = {key: value for key, value in asdict(event).items() if value or key == "kind"}
        texts = [key for key in ("text", "reason", "noise") if key in plain]
        plain |= {key: truncate_middle(plain[key], _MAX_TEXT, "see the record") for key in texts}
        with suppress(OSError):
            # the folder may come from anybody
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(self._file, flags, 0o644)
            try:
                os.write(descriptor, (json.dumps(plain) + "\n").encode())
            finally:
                os.close(descriptor)


class ProgressLogReader:
    """Reads new events of a run, from *offset* on."""

    def __init__(self, folder: Path, offset: int = 0) -> None:
        self._file, self._offset = folder / PROGRESS_FILE, offset

    def read_new(self) -> list[ProgressEvent]:
        """Events since the last call."""
        try:
            # opened anew each time: a network file system then asks its server
            content = files.read_range(self._file, self._offset, _MAX_BYTES)
        except OSError:
            return []
        # a line that is being written has no end yet
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [event for line in whole.splitlines() if (event := _parse_event(line))]


def log_size(folder: Path) -> int:
    """Bytes of the events so far, at which later sessions begin."""
    try:
        return (folder / PROGRESS_FILE).stat().st_size
    except OSError:
        return 0


def _parse_event(line: bytes) -> ProgressEvent | None:
    try:
        return decode(ProgressEvent, parse_json(line, PROGRESS_FILE), PROGRESS_FILE)
    except RecordError:
        return None

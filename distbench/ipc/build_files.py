"""Files between a run and its preparation: the items to build, and a journal."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from distbench.core.serialization import decode
from distbench.system.files import write_atomic


@dataclass(frozen=True)
class BuildItem:
    """An item to build once, before any trial."""

    kind: Literal["metric", "strategy", "engine", "weights"]
    name: str
    """Unique name in messages."""
    data: dict[str, Any]
    """Choice of the metric, or a case of the strategy or with those weights, as JSON."""
    file: str = ""
    """File of the weights."""


@dataclass(frozen=True)
class BuildFailure:
    """Reason why an item could not be built."""

    reason: str
    refused: bool = False
    """True if its purpose is unsupported, and nothing broke."""


@dataclass(frozen=True)
class BuildEvent:
    """Line of the journal: an item was begun or has ended."""

    item: str
    ended: bool = False
    failed: str = ""
    """Reason why it could not be built; empty if it was."""
    refused: bool = False
    """True if its purpose is unsupported, and nothing broke."""
    notes: list[str] = field(default_factory=list)
    """Notes for the user."""


def write_items(file: Path, items: list[BuildItem]) -> None:
    """Write *items* to *file*, and begin a new journal beside it."""
    write_atomic(file, json.dumps([dataclasses.asdict(item) for item in items]))
    journal_file(file).write_text("")


def read_items(file: Path) -> list[BuildItem]:
    """Content of *file*, which ``write_items`` wrote."""
    return [decode(BuildItem, item, str(file)) for item in json.loads(file.read_text())]


def journal_file(file: Path) -> Path:
    """Journal file of the preparation whose items are in *file*."""
    return file.with_suffix(".journal")


def append_event(file: Path, event: BuildEvent) -> None:
    """Append *event* to the journal of the preparation whose items are in *file*."""
    with journal_file(file).open("a") as stream:
        stream.write(json.dumps(dataclasses.asdict(event)) + "\n")


class BuildJournalReader:
    """Reader of a preparation's journal while it grows."""

    def __init__(self, file: Path) -> None:
        self._file = journal_file(file)
        self._offset = 0

    def read_new(self) -> list[BuildEvent]:
        """Events since the last call; a line that is still being written is left for the next call."""
        with self._file.open("rb") as stream:
            stream.seek(self._offset)
            *lines, _ = stream.read().split(b"\n")
        self._offset += sum(len(line) + 1 for line in lines)
        return [decode(BuildEvent, json.loads(line), str(self._file)) for line in lines]

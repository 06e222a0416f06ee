"""Mirror of the run's folder on a node without the shared file system.

Files that ranks read come here; files that they write go to the controller, which puts them into the run's
folder. Paths below both folders are the same, and instructions name the files here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from distbench.ipc.build_files import BuildJournalReader, journal_file
from distbench.ipc.file_transfer import (
    FileReceiver,
    TransferError,
    cached_sha256,
    file_chunks,
)
from distbench.ipc.launch_spec import LaunchSpec
from distbench.ipc.messages import BuildEvents, FileChunk, Message, RankProgress
from distbench.ipc.trial_files import ProgressMark, error_file, log_file, progress_file, read_progress
from distbench.system.files import write_atomic
from distbench.system.log_files import BoundedLogs
from distbench.system.temporary import temporary_folder


class RunMirror:
    """The run's folder on this node, among the temporary files; ``close`` removes it."""

    def __init__(self, root: str) -> None:
        """Make the folder.

        Args:
            root: Path of the run's folder on the nodes that share it.
        """
        self._root, self._cleanup = Path(root), ExitStack()
        self.folder = self._cleanup.enter_context(temporary_folder())
        self._arrivals = FileReceiver(self.folder)
        self._problem = ""

    def missing_files(self, offered: Iterable[tuple[str, str]]) -> list[str]:
        """Names of the *offered* files (name and digest) that are missing here."""
        return [name for name, made in offered if not self._has(name, made)]

    def receive(self, chunk: FileChunk) -> None:
        """Store *chunk*; an error becomes the problem of the next trial."""
        if self._problem:
            return
        try:
            self._arrivals.receive(chunk)
        except (OSError, TransferError) as error:
            self._problem = f"can't write {chunk.name} to {self.folder}: {_error_text(error)}"

    def open_trial(self, spec: LaunchSpec, file_label: str) -> MirroredTrial:
        """Open the trial of *spec*, whose files are in the run's folder, for its ranks here.

        Args:
            file_label: Inserted into the names of files that go back, unless it is empty.

        Raises:
            OSError: something that it needs could not be stored here.
        """
        if self._problem:
            problem, self._problem = self._problem, ""
            raise OSError(problem)
        own = self.folder / spec.instructions.relative_to(self._root)
        write_atomic(own, json.dumps(self._relocate(json.loads(own.read_text()))))
        if spec.command == "prepare":
            journal_file(own).write_text("")
        outputs = [str(file.relative_to(self._root)) for file in spec.output_files]
        return MirroredTrial(self.folder, own, outputs, list(spec.local_ranks.ranks), file_label)

    def close(self) -> None:
        """Remove the folder."""
        self._arrivals.close()
        self._cleanup.close()

    def _has(self, name: str, expected_digest: str) -> bool:
        file = self.folder / name
        return file.is_file() and cached_sha256(file) == expected_digest

    def _relocate(self, value: Any) -> Any:
        """*value*, parsed JSON, with paths in the run's folder replaced by those here (made if missing)."""
        if isinstance(value, dict):
            return {key: self._relocate(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._relocate(each) for each in value]
        if isinstance(value, str) and value.startswith(f"{self._root}/"):
            place = self.folder / Path(value).relative_to(self._root)
            place.parent.mkdir(parents=True, exist_ok=True)
            return str(place)
        return value


class MirroredTrial:
    """A trial on this node, and the files that its ranks write."""

    def __init__(self, root: Path, file: Path, outputs: list[str], ranks: list[int], label: str) -> None:
        self._root, self._folder, self._outputs, self._label = root, file.parent, outputs, label
        self.file = file
        """File of its instructions."""
        self._journal = BuildJournalReader(file) if journal_file(file).is_file() else None
        self._marks: dict[int, ProgressMark] = {}
        self._exited: set[int] = set()
        self._unsent = set(ranks)
        self._sent: dict[Path, tuple[int, int]] = {}
        self._logs = BoundedLogs(log_file(self._folder, rank) for rank in ranks)
        self._messages_sent = 0

    def updates(self) -> Iterator[Message]:
        """Yield news since the last call: progress marks, failures, events of a preparation."""
        self._logs.trim()
        seen = self._read_marks(self._unsent - self._exited)
        if new := {rank: sign for rank, sign in seen.items() if sign != self._marks.get(rank)}:
            self._marks |= new
            yield RankProgress(tuple(new.items()))
        if self._journal and (events := self._journal.read_new()):
            yield BuildEvents(tuple(events))
        for rank in self._unsent - self._exited:
            yield from self._changed_file(error_file(self._folder, rank))

    def final_files(self, rank: int) -> Iterator[Message]:
        """Yield all files of *rank*, which has ended; with the last rank also those that the trial leaves."""
        self._exited.add(rank)
        yield from self.updates()
        for file in sorted(self._folder.glob(f"rank{rank}.*")):
            if file != progress_file(self._folder, rank):
                yield from self._with_progress(self._changed_file(file))
        self._unsent.discard(rank)
        if not self._unsent:
            for name in self._outputs:
                yield from self._with_progress(self._changed_file(self._root / name))

    def current_files(self) -> Iterator[Message]:
        """Yield the logs and results of ranks that are still running."""
        for rank in sorted(self._unsent):
            # errors, and results of ranks that have not ended; a trace is of no use without them
            for file in (log_file(self._folder, rank), *sorted(self._folder.glob(f"rank{rank}.*json"))):
                yield from self._changed_file(file)

    def remove(self) -> Iterator[Message]:
        """Remove its folder; yields no message."""
        shutil.rmtree(self._folder, ignore_errors=True)
        yield from ()

    def _read_marks(self, ranks: set[int]) -> dict[int, ProgressMark]:
        """Last progress marks of those *ranks* that have written one."""
        seen = {rank: read_progress(progress_file(self._folder, rank)) for rank in ranks}
        return {rank: sign for rank, sign in seen.items() if sign}

    def _with_progress(self, messages: Iterator[Message]) -> Iterator[Message]:
        """Yield *messages*, and new progress marks of ranks that have ended but are not yet reported."""
        for message in messages:
            yield message
            self._messages_sent += 1
            seen = self._read_marks(self._exited & self._unsent)
            sent = self._messages_sent
            yield RankProgress(
                tuple((rank, replace(mark, sequence=mark.sequence + sent)) for rank, mark in seen.items())
            )

    def _changed_file(self, file: Path) -> Iterator[Message]:
        """Yield *file* in chunks if it exists and has changed since it was last sent."""
        try:
            status = file.stat()
        except FileNotFoundError:
            return
        if self._sent.get(file) != (status.st_size, status.st_mtime_ns):
            called = file.with_suffix(f".{self._label}{file.suffix}") if self._label else file
            yield from file_chunks(file, called.relative_to(self._root).as_posix())
            self._sent[file] = status.st_size, status.st_mtime_ns


def _error_text(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)

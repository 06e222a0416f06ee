"""The folder of a run on a node that does not share it: what ranks read comes here, what they write goes
to the controller, which has them all in the run's folder.

Ranks find the same files below it as below the run's folder elsewhere, and instructions name them here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from distbench.ipc.build_files import Journal, journal_file
from distbench.ipc.file_transfer import Arrivals, Message, TransferError, digest, pieces
from distbench.ipc.trial_files import Sign, error_file, log_file, progress_file, read_progress
from distbench.system.files import write_whole
from distbench.system.log_files import Logs
from distbench.system.temporary import temporary_folder


class Copy:
    """The run's folder on this node, in the folder for temporary files; ``close`` removes it."""

    def __init__(self, root: str) -> None:
        """Make the folder.

        Args:
            root: The run's folder elsewhere.
        """
        self._root, self._kept = Path(root), ExitStack()
        self.folder = self._kept.enter_context(temporary_folder())
        self._arrivals = Arrivals(self.folder)
        self._problem = ""

    def lacks(self, offered: Iterable[tuple[str, str]]) -> list[str]:
        """Names of those files that are not here, of *offered* names and digests."""
        return [name for name, made in offered if not self._has(name, made)]

    def take(self, message: dict[str, Any]) -> None:
        """Take in a piece of a file; what goes wrong with it is the problem of the next trial."""
        if self._problem:
            return
        try:
            self._arrivals.take(message)
        except (OSError, TransferError) as error:
            self._problem = f"{message['piece']} can't be put into {self.folder}: {_text(error)}"

    def trial(
        self, file: str, leaves: Iterable[str], ranks: Iterable[int], node: str, *, is_preparation: bool
    ) -> Trial:
        """The trial whose instructions came as *file* of the run's folder, ready for its *ranks* here.

        Args:
            node: Comes into the names of files that go back, unless it is empty.

        Raises:
            OSError: what it needs could not be put here.
        """
        if self._problem:
            problem, self._problem = self._problem, ""
            raise OSError(problem)
        own = self.folder / Path(file).relative_to(self._root)
        write_whole(own, json.dumps(self._moved(json.loads(own.read_text()))))
        if is_preparation:
            journal_file(own).write_text("")
        return Trial(self.folder, own, list(leaves), list(ranks), node)

    def close(self) -> None:
        """Remove the folder."""
        self._arrivals.close()
        self._kept.close()

    def _has(self, name: str, made: str) -> bool:
        file = self.folder / name
        return file.is_file() and digest(file) == made

    def _moved(self, value: Any) -> Any:
        """*value*, parsed JSON, with each path in the run's folder as it is here, and its folder made."""
        if isinstance(value, dict):
            return {key: self._moved(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._moved(each) for each in value]
        if isinstance(value, str) and value.startswith(f"{self._root}/"):
            place = self.folder / Path(value).relative_to(self._root)
            place.parent.mkdir(parents=True, exist_ok=True)
            return str(place)
        return value


class Trial:
    """A trial on this node, and what its ranks write."""

    def __init__(self, root: Path, file: Path, leaves: list[str], ranks: list[int], node: str) -> None:
        self._root, self._folder, self._leaves, self._node = root, file.parent, leaves, node
        self.file = file
        """Its instructions."""
        self._journal = Journal(file) if journal_file(file).is_file() else None
        self._signs: dict[int, Sign] = {}
        self._over: set[int] = set()
        self._left = set(ranks)
        self._sent: dict[Path, tuple[int, int]] = {}
        self._logs = Logs(log_file(self._folder, rank) for rank in ranks)
        self._pieces = 0

    def news(self) -> Iterator[Message]:
        """What is new since the last call: signs of life, failures, what a preparation has done."""
        self._logs.cut()
        seen = self._seen(self._left - self._over)
        if new := {rank: sign for rank, sign in seen.items() if sign != self._signs.get(rank)}:
            self._signs |= new
            yield _signs(new)
        if self._journal and (events := self._journal.news()):
            yield {"journal": [asdict(event) for event in events]}, b""
        for rank in self._left - self._over:
            yield from self._file(error_file(self._folder, rank))

    def ended(self, rank: int) -> Iterator[Message]:
        """All that *rank*, which has ended, has written; with the last rank also what the trial leaves."""
        self._over.add(rank)
        yield from self.news()
        for file in sorted(self._folder.glob(f"rank{rank}.*")):
            if file != progress_file(self._folder, rank):
                yield from self._with_signs(self._file(file))
        self._left.discard(rank)
        if not self._left:
            for name in self._leaves:
                yield from self._with_signs(self._file(self._root / name))

    def told(self) -> Iterator[Message]:
        """What its ranks have printed and reported so far."""
        for rank in sorted(self._left):
            # errors, and what ranks wrote that have not ended; a trace is of no use without them
            for file in (log_file(self._folder, rank), *sorted(self._folder.glob(f"rank{rank}.*json"))):
                yield from self._file(file)

    def removed(self) -> Iterator[Message]:
        """Remove its folder; nothing more comes of it."""
        shutil.rmtree(self._folder, ignore_errors=True)
        yield from ()

    def _seen(self, ranks: set[int]) -> dict[int, Sign]:
        """The last signs of life of those *ranks* that have given one."""
        seen = {rank: read_progress(progress_file(self._folder, rank)) for rank in ranks}
        return {rank: sign for rank, sign in seen.items() if sign}

    def _with_signs(self, messages: Iterator[Message]) -> Iterator[Message]:
        """*messages*, and signs that the ranks which have ended, but are not reported yet, make progress."""
        for message in messages:
            yield message
            self._pieces += 1
            seen = self._seen(self._over & self._left)
            yield _signs({r: replace(sign, number=sign.number + self._pieces) for r, sign in seen.items()})

    def _file(self, file: Path) -> Iterator[Message]:
        """*file*, if there is one, and it is not as it was sent before."""
        try:
            status = file.stat()
        except FileNotFoundError:
            return
        if self._sent.get(file) != (status.st_size, status.st_mtime_ns):
            called = file.with_suffix(f".{self._node}{file.suffix}") if self._node else file
            yield from pieces(file, called.relative_to(self._root).as_posix())
            self._sent[file] = status.st_size, status.st_mtime_ns


def _signs(signs: dict[int, Sign]) -> Message:
    return {"signs": {rank: asdict(sign) for rank, sign in signs.items()}}, b""


def _text(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)

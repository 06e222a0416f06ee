"""Where each value of a suite stands, so that a mistake found late still names file and line."""

from __future__ import annotations

from collections.abc import Sequence

from distbench.errors import Mistake

KeyPath = tuple[str | int, ...]


def key_text(path: Sequence[str | int]) -> str:
    """Return a path as people write it: ``strategies[2].zero.stage``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


class Places:
    """The file and line, or the command-line option, from which each value of a suite comes."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._known: dict[KeyPath, tuple[str, int | None]] = {}

    def put(self, path: KeyPath, line: int) -> None:
        """Remember that the value at *path* stands in the file at *line*."""
        self._known[path] = (self._source, line)

    def override(self, path: KeyPath, option: str) -> None:
        """Remember that the command-line *option* put the value at *path*, and all below it."""
        self.forget(path)
        self._known[path] = (option, None)

    def forget(self, path: KeyPath) -> None:
        """Forget the value at *path* and all below it."""
        for known in [known for known in self._known if known[: len(path)] == path]:
            del self._known[known]

    def move(self, path: KeyPath, below: KeyPath) -> None:
        """Follow the value at *path* as it becomes the value at *below*, which is deeper."""
        if path in self._known:
            self._known[below] = self._known[path]

    def at(self, path: KeyPath) -> tuple[str, int | None]:
        """Return source and line of *path*, or of the nearest value around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._known:
                return self._known[path[:length]]
        return self._source, None

    def mistake(self, path: KeyPath, message: str, value: object = None) -> Mistake:
        """Return the mistake that *message* describes, placed in the suite."""
        source, line = self.at(path)
        return Mistake(message, key_text(path), value, source, line)

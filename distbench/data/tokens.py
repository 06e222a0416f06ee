"""``tokens``: a flat binary file of token ids, memory-mapped."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from distbench.data._rows import OF_TOKENS, TokenRow, file_problem, kind_problem, tokens_problem
from distbench.data.base import Merit, Shape

if TYPE_CHECKING:
    import numpy as np

_CHUNK = 1 << 24


@dataclass(frozen=True)
class Tokens(TokenRow):
    """Token ids of one's own as a flat binary file (nanoGPT's and Megatron's .bin), memory-mapped."""

    path: str
    """The file: ids one after the other, without a header."""
    dtype: Literal["uint16", "uint32", "int32"] = "uint16"
    """Type of an id in the file, little-endian."""

    def problem(self, shape: Shape) -> str | None:
        if problem := kind_problem("tokens", OF_TOKENS, shape) or file_problem(self.path):
            return problem
        what = f"path = {self.path!r}"
        state = Path(self.path).stat()
        width = int(self.dtype.removeprefix("u").removeprefix("int")) // 8
        if state.st_size % width:
            return f"{what}: {state.st_size} bytes are not a whole number of {self.dtype} ids; check dtype"
        smallest, largest = _range(self.path, self.dtype, (state.st_ino, state.st_size, state.st_mtime_ns))
        if smallest < 0:
            return f"{what}: contains a negative id, {smallest}; check dtype = {self.dtype}"
        return tokens_problem(what, shape, state.st_size // width, largest)

    def merit(self, shape: Shape) -> Merit:
        doc = "Held-out cross-entropy of a token in nats; the held-out part is the last tenth of the file."
        return Merit("nats_per_token", "nats/token", "lower", doc)

    def tokens(self) -> np.ndarray:
        return _mapped(self.path, self.dtype)


def _mapped(path: str, dtype: str) -> np.ndarray:
    import numpy as np

    return np.memmap(path, dtype=np.dtype(dtype).newbyteorder("<"), mode="r")


@functools.cache
def _range(path: str, dtype: str, state: tuple[int, int, int]) -> tuple[int, int]:  # noqa: ARG001 - a key
    """Smallest and the largest id of the file, read once as long as *state* is the same."""
    ids = _mapped(path, dtype)
    chunks = (ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK))
    ranges = [(int(chunk.min()), int(chunk.max())) for chunk in chunks]
    return min(low for low, _ in ranges), max(high for _, high in ranges)

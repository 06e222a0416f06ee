"""``tokens``: a flat binary file of token ids, memory-mapped."""

from __future__ import annotations

import functools
import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from distbench.core.errors import InfrastructureError, RecordError
from distbench.core.serialization import decode
from distbench.data._rows import TOKEN_KINDS, TokenStream, data_kind_problem, file_problem, tokens_problem
from distbench.data.base import DataShape, HeldOutMetric
from distbench.system.cache import cache_folder
from distbench.system.files import read_bounded, write_atomic

if TYPE_CHECKING:
    import numpy as np

_CHUNK = 1 << 24
_MAX_CACHE_BYTES = 1 << 12
"""Maximum size of a cache file."""


@dataclass(frozen=True)
class _IdRange:
    smallest: int
    largest: int


@dataclass(frozen=True)
class Tokens(TokenStream):
    """Token ids of one's own as a flat binary file (nanoGPT's and Megatron's .bin), memory-mapped."""

    path: str
    """The file: ids one after the other, without a header."""
    dtype: Literal["uint16", "uint32", "int32"] = "uint16"
    """Type of an id in the file, little-endian."""

    def problem(self, shape: DataShape) -> str | None:
        if problem := data_kind_problem("tokens", TOKEN_KINDS, shape) or file_problem(self.path):
            return problem
        what = f"path = {self.path!r}"
        state = Path(self.path).stat()
        width = int(self.dtype.removeprefix("u").removeprefix("int")) // 8
        if state.st_size % width:
            return f"{what}: {state.st_size} bytes are not a whole number of {self.dtype} ids; check dtype"
        ids = _id_range(self.path, self.dtype, (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns))
        if ids.smallest < 0:
            return f"{what}: contains a negative id, {ids.smallest}; check dtype = {self.dtype}"
        return tokens_problem(what, shape, state.st_size // width, ids.largest)

    def held_out_metric(self, shape: DataShape) -> HeldOutMetric:
        doc = "Held-out cross-entropy in nats per token; the held-out part is the last tenth of the file."
        return HeldOutMetric("nats_per_token", "nats/token", "lower", doc)

    def tokens(self) -> np.ndarray:
        return _memory_map(self.path, self.dtype)


def _memory_map(path: str, dtype: str) -> np.ndarray:
    import numpy as np

    return np.memmap(path, dtype=np.dtype(dtype).newbyteorder("<"), mode="r")


@functools.cache
def _id_range(path: str, dtype: str, state: tuple[int, ...]) -> _IdRange:
    """Smallest and largest id of the file, which is read once as long as *state* is the same.

    Reading a large file takes minutes, and every command needs the result, so it is cached.
    """
    decides = json.dumps([str(Path(path).resolve()), dtype, state])
    file = cache_folder() / "tokens" / f"{hashlib.sha256(decides.encode()).hexdigest()[:16]}.json"
    with suppress(OSError, ValueError, RecordError):
        return decode(_IdRange, json.loads(read_bounded(file, _MAX_CACHE_BYTES)), str(file))
    found = _read(path, dtype)
    with suppress(OSError, InfrastructureError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, json.dumps(asdict(found)))
    return found


def _read(path: str, dtype: str) -> _IdRange:
    ids = _memory_map(path, dtype)
    chunks = (ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK))
    ranges = [(int(chunk.min()), int(chunk.max())) for chunk in chunks]
    return _IdRange(min(low for low, _ in ranges), max(high for _, high in ranges))

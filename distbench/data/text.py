"""``text``: bytes of real English, or of a file of one's own."""

from __future__ import annotations

import functools
import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distbench.data._rows import OF_TOKENS, TokenRow, file_problem, kind_problem, tokens_problem
from distbench.data.base import Merit, Shape

if TYPE_CHECKING:
    import numpy as np

_LARGEST = 255


@dataclass(frozen=True)
class Text(TokenRow):
    """Bytes of real text as tokens (vocabulary 256), in windows at random places."""

    path: str | None = None
    """A text file; null: the half megabyte of English that every Python carries
    (pydoc_data.topics), so that nothing is downloaded. It differs between versions of Python."""

    def problem(self, shape: Shape) -> str | None:
        if wrong_kind := kind_problem("text", OF_TOKENS, shape):
            return wrong_kind
        if self.path is None:
            if importlib.util.find_spec("pydoc_data.topics") is None:
                return "this Python has no pydoc_data.topics; set path to a text file"
            return tokens_problem("text", shape, len(_documentation()), _LARGEST)
        if problem := file_problem(self.path):
            return problem
        return tokens_problem(f"path = {self.path!r}", shape, Path(self.path).stat().st_size, _LARGEST)

    @property
    def is_of_python(self) -> bool:
        return self.path is None

    def merit(self, shape: Shape) -> Merit:
        doc = "Held-out cross-entropy of a byte in bits; the held-out part is the last tenth of the text."
        return Merit("bits_per_byte", "bits/byte", "lower", doc, scale=1 / math.log(2))

    def tokens(self) -> np.ndarray:
        import numpy as np

        if self.path is None:
            return np.frombuffer(_documentation(), dtype=np.uint8)
        return np.memmap(self.path, dtype=np.uint8, mode="r")


@functools.cache
def _documentation() -> bytes:
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics)).encode()

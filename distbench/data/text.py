"""``text``: bytes of real English, or of a file of one's own."""

from __future__ import annotations

import functools
import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distbench.data._rows import TOKEN_KINDS, TokenStream, data_kind_problem, file_problem, tokens_problem
from distbench.data.base import DataShape, HeldOutMetric

if TYPE_CHECKING:
    import numpy as np

_MAX_BYTE = 255


@dataclass(frozen=True)
class Text(TokenStream):
    """Bytes of real text as tokens (vocabulary 256), in windows at random places."""

    path: str | None = None
    """A text file; null: the half megabyte of English that every Python carries
    (pydoc_data.topics), so that nothing is downloaded. It differs between versions of Python."""

    def problem(self, shape: DataShape) -> str | None:
        if wrong_kind := data_kind_problem("text", TOKEN_KINDS, shape):
            return wrong_kind
        if self.path is None:
            if importlib.util.find_spec("pydoc_data.topics") is None:
                return "this Python does not include pydoc_data.topics; set path to a text file"
            return tokens_problem("text", shape, len(_python_help_text()), _MAX_BYTE)
        if problem := file_problem(self.path):
            return problem
        return tokens_problem(f"path = {self.path!r}", shape, Path(self.path).stat().st_size, _MAX_BYTE)

    @property
    def depends_on_python_version(self) -> bool:
        return self.path is None

    def held_out_metric(self, shape: DataShape) -> HeldOutMetric:
        doc = "Held-out cross-entropy in bits per byte; the held-out part is the last tenth of the text."
        return HeldOutMetric("bits_per_byte", "bits/byte", "lower", doc, scale=1 / math.log(2))

    def tokens(self) -> np.ndarray:
        import numpy as np

        if self.path is None:
            return np.frombuffer(_python_help_text(), dtype=np.uint8)
        return np.memmap(self.path, dtype=np.uint8, mode="r")


@functools.cache
def _python_help_text() -> bytes:
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics)).encode()

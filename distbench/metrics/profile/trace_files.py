"""Save profiler traces beside a record."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path
from typing import Any


def save_trace(profiler: Any, file: Path) -> None:
    """Write the trace of the stopped *profiler* to *file* (``.json.gz``), whose folder exists.

    Kineto accepts only paths in UTF-8, and torch compresses by way of TMPDIR. Both may have bytes that this
    locale can't decode, so the path used is a descriptor of the folder.

    Raises:
        OSError: it can't be written.
    """
    plain = file.with_suffix("")
    folder = os.open(file.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        profiler.export_chrome_trace(f"/proc/self/fd/{folder}/{plain.name}")
        with plain.open("rb") as trace, gzip.open(file, "wb") as compressed:
            shutil.copyfileobj(trace, compressed)
    finally:
        os.close(folder)
        plain.unlink(missing_ok=True)

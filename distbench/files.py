"""Writing files so that a kill or a full disk leaves the old file or the new one, never half."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(file: Path, text: str) -> None:
    """Write *text* aside, flush it to the disk, and rename it into place.

    Raises:
        OSError: it could not be written; what stood in *file* before still does.
    """
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        # surrogates: names from the command line or a foreign log may hold undecodable bytes
        with aside.open("w", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        aside.replace(file)
    except OSError:
        aside.unlink(missing_ok=True)
        raise

"""Safe names of files, and writing so that a kill or a full disk leaves the old file or the new one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """Yield a place aside; at the end, what stands there is flushed to the disk and renamed into place.

    Raises:
        OSError: it could not be written; what stood in *file* before still does.
    """
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        yield aside
        with aside.open("rb") as stream:
            os.fsync(stream.fileno())
        aside.replace(file)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_whole(file: Path, text: str) -> None:
    """Write *text* aside, flush it to the disk, and rename it into place.

    Raises:
        OSError: it could not be written; what stood in *file* before still does.
    """
    with whole(file) as aside:
        # surrogates: names from the command line or a foreign log may hold undecodable bytes
        aside.write_text(text, encoding="utf-8", errors="surrogateescape")


def slug(name: str) -> str:
    """Return *name* as a safe file name: ``[a-z0-9._+-]``, 64 characters at most."""
    return re.sub(r"[^a-z0-9._+-]+", "-", name.lower()).strip("-.")[:64] or "unnamed"

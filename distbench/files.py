"""Safe file names, and atomic writes: a kill or a full disk leaves the old file or the new one."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distbench.errors import InfrastructureError


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """Yield a temporary path; at the end its content is flushed to disk and renamed to *file*.

    Raises:
        OSError: it could not be written; *file* is as before.
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
    """Write *text* to a temporary file, flush it to disk and rename it to *file*.

    Raises:
        OSError: it could not be written; *file* is as before.
    """
    with whole(file) as aside:
        # surrogates: names from the command line or a foreign log may contain undecodable bytes
        aside.write_text(text, encoding="utf-8", errors="surrogateescape")


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn an OSError into an InfrastructureError that says that *place* can't be written."""
    try:
        yield
    except OSError as error:
        raise InfrastructureError(f"{place}: can't be written: {error.strerror or error}") from error


def slug(name: str) -> str:
    """*name* as a safe file name: ``[a-z0-9._+-]``, at most 64 characters."""
    return re.sub(r"[^a-z0-9._+-]+", "-", name.lower()).strip("-.")[:64] or "unnamed"

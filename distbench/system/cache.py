"""Folder in which distbench keeps C++ libraries and derived files from run to run."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from distbench.core.errors import UsageError

_VARIABLE = "DISTBENCH_CACHE"


def cache_folder() -> Path:
    """distbench's cache folder; it need not exist yet.

    ``DISTBENCH_CACHE``, otherwise ``distbench`` in the user's cache folder (``XDG_CACHE_HOME`` or
    ``~/.cache``). Where that can't be written, as in many containers, a folder of this user in ``TMPDIR``.

    Raises:
        UsageError: there is no home, and another user has taken the name of that folder.
    """
    if chosen := os.environ.get(_VARIABLE):
        return Path(chosen)
    own = _home_cache()
    if own and _is_writable(own):
        return own
    if found := _temporary_cache() or own:
        return found
    raise UsageError(f"{_VARIABLE} is not set, and neither a home nor TMPDIR can hold the cache; set it")


def temporary_cache_text() -> str:
    """Explain why the cache is in ``TMPDIR``; empty: it is not."""
    own, used = _home_cache(), cache_folder()
    if os.environ.get(_VARIABLE) or used == own:
        return ""
    why = f"{own} can't be written" if own else "this user has no home"
    return f"{why}, so the cache is {used}; to keep it, set {_VARIABLE} to a folder that lasts"


def _home_cache() -> Path | None:
    """Cache folder in the user's home; None: there is no home, as for a user without an entry in passwd."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(base) / "distbench"


def _is_writable(folder: Path) -> bool:
    """True if *folder*, or the nearest folder above it that exists, can be written."""
    nearest = next((each for each in (folder, *folder.parents) if each.exists()), None)
    return nearest is not None and os.access(nearest, os.W_OK | os.X_OK)


def _temporary_cache() -> Path | None:
    """A folder in ``TMPDIR`` into which only this user can write; None: another has taken its name.

    Ranks load libraries from the cache, so nobody else may put any there.
    """
    folder = Path(tempfile.gettempdir()) / f"distbench-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return folder if is_own and not found.st_mode & 0o022 else None

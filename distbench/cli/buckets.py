"""Runs in a bucket, copied into a folder before they are read: through fsspec, which knows all kinds."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distbench.analysis.text import one_line
from distbench.cli.printing import note
from distbench.errors import UsageError

# of a run, what its numbers stand in; logs and traces may be a hundred times as large
_READ = (".json", ".parquet")
_ELSE = "or copy the bucket into a folder (aws s3 sync, gcloud storage rsync, rclone sync) and give that"


@contextmanager
def fetched(url: str) -> Iterator[Path]:
    """Yield a folder with the numbers of the runs below *url*, such as ``s3://bucket/runs``.

    Raises:
        UsageError: the library for such a bucket is not here, or the bucket can't be read.
    """
    if importlib.util.find_spec("fsspec") is None:
        raise UsageError(f"{url}: reading a bucket takes fsspec: pip install fsspec, {_ELSE}")
    with tempfile.TemporaryDirectory(prefix="distbench-") as name:
        folder = Path(name).resolve()
        try:
            _copy(url, folder)
        # what can go wrong in a driver, and by which class it says so, is that driver's own
        except Exception as error:
            said = one_line(str(error)) or type(error).__name__
            raise UsageError(f"{url}: can't be read: {said}; mend that, {_ELSE}") from error
        yield folder


def _copy(url: str, folder: Path) -> None:
    from fsspec.core import url_to_fs

    files, root = url_to_fs(url)
    wanted = {each: folder / _below(each, root) for each in files.find(root) if each.endswith(_READ)}
    # a key is a name that anybody may have given: none may lead out of the folder
    safe = {each: place for each, place in wanted.items() if place.resolve().is_relative_to(folder)}
    note(f"history: copying {len(safe):,} files of {url}")
    for place in safe.values():
        place.parent.mkdir(parents=True, exist_ok=True)
    # all in one call: where the driver can, it copies many at a time
    files.get(list(safe), list(map(str, safe.values())))


def _below(key: str, root: str) -> str:
    return key.removeprefix(root).lstrip("/")

"""Traces of a stopped profiler: read, and saved beside a record."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from distbench.metrics.base import NotAvailable
from distbench.metrics.profile.kineto import read_kineto, tells_activities
from distbench.traces.trace import Trace, read_trace


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


def read_profiler(profiler: Any, folder: Path) -> Trace:
    """Read the trace of the stopped *profiler*; *folder* holds a file meanwhile, if that takes one.

    Before torch 2.12 the events in memory don't tell a kernel from a copy or its launch; those in a file do.

    Raises:
        OSError: the file can't be written.
        NotAvailable: msgspec, which reads it, is not installed.
    """
    events = profiler.profiler.kineto_results.events()
    if tells_activities(events):
        return read_kineto(events)
    try:
        from distbench.traces.chrome_file import read_file
    except ModuleNotFoundError:
        # in the Python environment of ranks only an older torch needs it
        raise NotAvailable(
            "needs msgspec, which reads the trace of torch before 2.12: pip install msgspec"
        ) from None
    with tempfile.TemporaryDirectory(dir=folder) as place:
        save_trace(profiler, file := Path(place) / "events.json.gz")
        read = read_file(file)
    return read_trace(read.events, read.origin_ns)

"""Copies of a run's folder as tar archives: out of a pod, and into a ConfigMap."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO

from distbench.system.files import atomic_path

# what a session needs of the earlier ones: neither their pages and logs nor files that are made anew
_LEFT_BEHIND = ("scratch", "submitted", "report.html", "report-lite.html")
# files that are being written, the lock, and what describes the submission here
_EXCLUDED = ("./scratch", "*/.?*", "./submitted/*.json")


def archive_command(folder: Path, since: float | None) -> list[str]:
    """Command of a pod that writes *folder* as an archive to its standard output.

    Args:
        since: Leave out logs, and what was changed before this time of the pod; None: leave out nothing.
    """
    newer = [] if since is None else [f"--newer-mtime=@{since:.0f}", "--exclude=*.log"]
    return [
        "tar",
        "--create",
        f"--directory={folder}",
        *(f"--exclude={each}" for each in _EXCLUDED),
        *newer,
        ".",
    ]


def extract(stream: IO[bytes], folder: Path) -> None:
    """Write each regular file of the archive *stream* into *folder*, whole or not at all.

    Raises:
        tarfile.TarError: the archive ends early; what came before is in place.
        OSError: the disk is full, or *folder* is not writable.
    """
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            name = PurePosixPath(member.name)
            content = archive.extractfile(member) if member.isreg() else None
            if content is None or name.is_absolute() or ".." in name.parts:
                continue
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(file) as aside:
                with aside.open("xb") as target:
                    shutil.copyfileobj(content, target)
                # the next copy begins where this one ended, by the clock of the pod
                os.utime(aside, (member.mtime, member.mtime))


def pack(folder: Path) -> bytes:
    """Return an archive with what a further session of the run in *folder* needs."""

    def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = PurePosixPath(member.name)
        is_left = name.parts[:1] and (name.parts[0] in _LEFT_BEHIND or name.name.startswith("."))
        return None if is_left or name.suffix == ".log" else member

    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        archive.add(folder, arcname=".", filter=kept)
    return stream.getvalue()

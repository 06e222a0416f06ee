"""Find the control group of this process and read its files.

Of cgroup v1 (the kernel's admin-guide/cgroup-v1) and v2 (admin-guide/cgroup-v2.rst), as far as they are
mounted here.
"""

from __future__ import annotations

import re
from pathlib import Path


def find_cgroup(proc: Path, kind: str, controller: str) -> list[Path]:
    """Folders of this process's cgroup and of those around it, from the inside out.

    Args:
        proc: ``/proc``, or a folder like it.
        kind: Type of the file system: ``cgroup`` (v1) or ``cgroup2``.
        controller: Of v1, such as ``memory``; empty for v2.

    Raises:
        OSError: the kernel shows no cgroups.
        LookupError: there is no such hierarchy, or its part with the cgroup is not mounted here.
    """
    path = _path(proc, controller)
    for line in (proc / "self/mountinfo").read_text().splitlines():
        mount, _, what = line.partition(" - ")
        root, top = map(_unescaped, mount.split()[3:5])
        type_, _, options = what.split(" ", 2)
        # in a container the mounted part may begin at the cgroup itself
        if type_ == kind and controller in ["", *options.split(",")] and path.is_relative_to(root):
            folder = Path(top) / path.relative_to(root)
            return [folder, *(each for each in folder.parents if each.is_relative_to(top))]
    raise LookupError(f"{kind} {path} is not mounted")


def read_table(file: Path) -> dict[str, int]:
    """Numbers in *file* by the names before them, one per line."""
    pairs = (line.split() for line in file.read_text().splitlines())
    return {name: int(value) for name, value in pairs}


def read_number(file: Path) -> int | None:
    """Number in *file*; None if it says ``max``, or this kernel has no such file."""
    try:
        return int(file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def _path(proc: Path, controller: str) -> Path:
    """Path of this process's cgroup in the hierarchy of *controller*; empty for v2, which has none."""
    for line in (proc / "self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return Path(path)
    raise LookupError(f"no cgroup with {controller or 'v2'}")


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)

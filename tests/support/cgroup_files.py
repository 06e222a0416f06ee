"""Files of a kernel that show the control groups of a process."""

from __future__ import annotations

from pathlib import Path

import pytest


class FakeCgroupFiles:
    """The files of a kernel that are read, below a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.mounts = folder / "proc", folder / "sys fs"
        (self.proc / "self").mkdir(parents=True)

    def cgroups(self, text: str, *mounts: str) -> None:
        """Say which cgroups this process is in, and what is mounted: root, folder, type and options."""
        (self.proc / "self/cgroup").write_text(text)
        lines = []
        for mount in mounts:
            root, folder, kind = mount.split(" ", 2)
            place = str(self.mounts / folder).replace(" ", r"\040")
            lines.append(f"36 25 0:31 {root} {place} rw,nosuid shared:9 - {kind}\n")
        (self.proc / "self/mountinfo").write_text("".join(lines))

    def write(self, name: str, text: str) -> None:
        file = self.mounts / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def cgroup_files(tmp_path: Path) -> FakeCgroupFiles:
    return FakeCgroupFiles(tmp_path)

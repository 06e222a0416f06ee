"""Files that a launch reads, and the nodes that get a copy of them."""

from pathlib import Path
from typing import Any

import pytest

from distbench.ipc.launch_spec import LaunchSpec
from distbench.ipc.messages import MissingFiles
from distbench.launchers.agents import send_inputs
from distbench.launchers.base import LaunchError, never_cancelled


class Asking:
    """Connection to an agent on node-1 that asks for *names*."""

    name = "node-1"

    def __init__(self, *names: str) -> None:
        self._names, self.sent = names, list[Any]()

    def receive_files_into(self, root: Path) -> None:
        pass

    def send(self, request: Any) -> None:
        self.sent.append(request)

    def wait_for(self, kind: type, **_: Any) -> MissingFiles:
        return MissingFiles(self._names)


def spec_in(folder: Path, name: str) -> LaunchSpec:
    return LaunchSpec("rank", folder / name, 1, run_folder=folder)


def test_without_a_node_that_needs_a_copy_no_file_is_read():
    # the memory of this process is a file whose first byte can't be read
    spec = spec_in(Path("/proc/self"), "mem")
    send_inputs(spec, [], never_cancelled)
    with pytest.raises(OSError, match="Input/output error"):
        send_inputs(spec, [Asking()], never_cancelled)  # type: ignore[list-item]


def test_a_node_that_asks_for_what_was_not_offered_is_named(tmp_path):
    (tmp_path / "trial.json").write_text("{}")
    agent = Asking("trial.json", "other.json")
    with pytest.raises(LaunchError, match=r"node-1 asks for other\.json, which was not offered"):
        send_inputs(spec_in(tmp_path, "trial.json"), [agent], never_cancelled)  # type: ignore[list-item]
    known = Asking("trial.json")
    send_inputs(spec_in(tmp_path, "trial.json"), [known], never_cancelled)  # type: ignore[list-item]
    offer, *chunks = known.sent
    assert [name for name, _ in offer.files] == ["trial.json"]
    assert chunks

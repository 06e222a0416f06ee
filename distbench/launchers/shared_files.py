"""Detect shared folders, and send input files to nodes without them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from distbench.ipc.file_transfer import cached_sha256, file_chunks
from distbench.launchers.agents import AgentConnection
from distbench.launchers.base import LaunchError, LaunchSpec

# for the digests of all files that a node has, which may be large
_DIGEST_TIMEOUT_S = 600.0


def agents_without_access(agents: Sequence[AgentConnection], folder: Path) -> list[AgentConnection]:
    """Return the *agents* that do not see *folder* of this host.

    Raises:
        LaunchError: an agent is lost, or there is no answer.
        OSError: this host can't write there.
    """
    content = secrets.token_hex(8)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f".shared-{content}"
    file.write_text(content)
    try:
        for agent in agents:
            agent.send({"look": [str(file), content]})
        return [agent for agent in agents if not agent.wait_for("sees")["sees"]]
    finally:
        file.unlink()


def base_folder(launch: LaunchSpec) -> Path:
    """Folder that contains all files of *launch*."""
    return launch.run_folder or launch.instructions.parent


def send_inputs(launch: LaunchSpec, agents: Sequence[AgentConnection]) -> None:
    """Send the files that *launch* reads to the copy of the run's folder on each of *agents*.

    Raises:
        LaunchError: an agent is lost, or the launch was cancelled.
        OSError: a file can't be read here.
    """
    root = base_folder(launch)
    files = {
        file.relative_to(root).as_posix(): file
        for file in (launch.instructions, *launch.input_files)
        if file.is_file()
    }
    offer = [(name, cached_sha256(file)) for name, file in files.items()]
    for agent in agents:
        agent.receive_files_into(root)
        agent.send({"offer": offer, "root": str(root)})
        told = agent.wait_for("lacks", "failed", seconds=_DIGEST_TIMEOUT_S)
        if "failed" in told:
            raise LaunchError(f"{agent.name}: {told['failed']}")
        for name in told["lacks"]:
            for message in file_chunks(files[name], name):
                agent.send(*message)
                if launch.is_cancelled():
                    raise LaunchError("cancelled")

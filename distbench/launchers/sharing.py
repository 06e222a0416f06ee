"""What nodes share with the controller: its file system, or else the files of a run, one by one."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from distbench.ipc.file_transfer import digest, pieces
from distbench.launchers.agents import Agent
from distbench.launchers.base import Launch, LaunchError

# for the digests of all files that a node has, which may be large
_DIGESTS_S = 600.0


def blind(agents: Sequence[Agent], folder: Path) -> list[Agent]:
    """Those *agents* that do not see *folder* of this host.

    Raises:
        LaunchError: one is gone, or does not answer.
        OSError: this host can't write there.
    """
    content = secrets.token_hex(8)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f".shared-{content}"
    file.write_text(content)
    try:
        for agent in agents:
            agent.send({"look": [str(file), content]})
        return [agent for agent in agents if not agent.answer("sees")["sees"]]
    finally:
        file.unlink()


def root_of(launch: Launch) -> Path:
    """Folder that has all files of *launch* in it."""
    return launch.root or launch.file.parent


def bring(launch: Launch, agents: Sequence[Agent]) -> None:
    """Have what *launch* reads in each of *agents*' copy of the run's folder.

    Raises:
        LaunchError: an agent is gone, or nobody waits for it any more.
        OSError: a file can't be read here.
    """
    root = root_of(launch)
    files = {
        file.relative_to(root).as_posix(): file for file in (launch.file, *launch.reads) if file.is_file()
    }
    offer = [(name, digest(file)) for name, file in files.items()]
    for agent in agents:
        agent.copies_into(root)
        agent.send({"offer": offer, "root": str(root)})
        told = agent.answer("lacks", "failed", seconds=_DIGESTS_S)
        if "failed" in told:
            raise LaunchError(f"{agent.name}: {told['failed']}")
        for name in told["lacks"]:
            for message in pieces(files[name], name):
                agent.send(*message)
                if launch.given_up():
                    raise LaunchError("nobody waits for it any more")

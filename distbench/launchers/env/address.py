"""Address of the controller: a file that the nodes share, or the variables of the job.

The file has the token of the controller, so only its user may read it. Nodes without a shared file system get
the token by ``DISTBENCH_TOKEN``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from distbench.core.errors import RecordError
from distbench.core.serialization import decode
from distbench.system.files import atomic_path, read_bounded

_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class ControllerAddress:
    """Addresses of the controller, ``host:port``, and the token by which both ends know each other."""

    addresses: Sequence[str]
    token: str


class AddressFile:
    """File in the folder of runs with the address of the controller of one job."""

    def __init__(self, folder: Path, job: str) -> None:
        """Name the file of *job*, a digest that its processes share, in *folder*."""
        self.path = folder.resolve() / f".controller-{job}.json"

    def write(self, address: ControllerAddress) -> None:
        """Write *address*, for this user only.

        Raises:
            OSError: it can't be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(self.path) as aside:
            aside.touch(0o600)
            aside.write_text(json.dumps(asdict(address)))

    def read(self) -> ControllerAddress | None:
        """Its content; None if there is none by this user, which nobody else may read."""
        with suppress(OSError, ValueError, RecordError):
            # network file systems show a new file when its folder is listed again
            list(self.path.parent.iterdir())
            status = self.path.lstat()
            if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
                content = json.loads(read_bounded(self.path, _MAX_BYTES))
                return decode(ControllerAddress, content, self.path.name)
        return None

    def remove(self) -> None:
        """Remove it, if it is there."""
        with suppress(OSError):
            self.path.unlink()

"""What one rank finds out once in a run, for all ranks and for the trials that follow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch.distributed as dist

from distbench import __version__
from distbench.strategies.base import Setting
from distbench.system.files import write_whole


def found_once(setting: Setting, name: str, decides: Callable[[], list[Any]], find: Callable[[], Any]) -> Any:
    """Return what *find* gives on rank 0, or what it gave in an earlier trial of the run. A collective call.

    Args:
        name: What is found, as a part of a file's name.
        decides: Returns all that the answer depends on, as JSON.
        find: Returns the answer, which is kept as JSON.

    Both are called on rank 0 alone, while the others wait.
    """
    told = [_found(setting, name, decides(), find) if setting.rank == 0 else None]
    dist.broadcast_object_list(told, src=0)
    return told[0]


def _found(setting: Setting, name: str, decides: list[Any], find: Callable[[], Any]) -> Any:
    # a run may go on with another version, which may find otherwise, or keep it in another form
    key = hashlib.sha256(json.dumps([__version__, *decides], sort_keys=True).encode()).hexdigest()[:12]
    file = setting.found and setting.found / f"{name}-{key}.json"
    # one that is missing, or damaged, is written anew
    with suppress(OSError, ValueError):
        if file:
            return json.loads(file.read_text(encoding="utf-8"))
    found = find()
    if file:
        file.parent.mkdir(exist_ok=True)
        write_whole(file, json.dumps(found))
    return found

"""What one rank finds out once in a run, for all ranks and for the trials that follow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from distbench.files import write_whole
from distbench.strategies.base import Setting


def found_once(setting: Setting, name: str, decides: list[Any], find: Callable[[], Any]) -> Any:
    """Return what *find* gives on rank 0, or what it gave in an earlier trial of the run. A collective call.

    Args:
        name: What is found, as a part of a file's name.
        decides: All that the answer depends on, as JSON.
        find: Called on rank 0 alone, while the others wait; what it returns is kept as JSON.
    """
    told = [_found(setting, name, decides, find) if setting.rank == 0 else None]
    dist.broadcast_object_list(told, src=0)
    return told[0]


def _found(setting: Setting, name: str, decides: list[Any], find: Callable[[], Any]) -> Any:
    key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:12]
    file = setting.found and setting.found / f"{name}-{key}.json"
    if file and file.is_file():
        return json.loads(file.read_text())
    found = find()
    if file:
        file.parent.mkdir(exist_ok=True)
        write_whole(file, json.dumps(found))
    return found

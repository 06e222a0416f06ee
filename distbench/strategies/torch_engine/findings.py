"""Compute a value once per run, on rank 0, and cache it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch.distributed as dist

from distbench import __version__
from distbench.strategies.base import RankContext
from distbench.system.files import write_atomic


def compute_once(
    context: RankContext, name: str, cache_key: Callable[[], list[Any]], compute: Callable[[], Any]
) -> Any:
    """Result of *compute* on rank 0, or of an earlier trial of the run. Collective call.

    Args:
        name: Name of the result, as a part of a file's name.
        cache_key: Returns everything that the result depends on, as JSON.
        compute: Returns the result, which is cached as JSON.

    Both are called only on rank 0, while the others wait.
    """
    shared = [_load_or_compute(context, name, cache_key(), compute) if context.rank == 0 else None]
    dist.broadcast_object_list(shared, src=0)
    return shared[0]


def _load_or_compute(
    context: RankContext, name: str, cache_key: list[Any], compute: Callable[[], Any]
) -> Any:
    # a run may continue with another version, whose result or format may differ
    key = hashlib.sha256(json.dumps([__version__, *cache_key], sort_keys=True).encode()).hexdigest()[:12]
    file = context.run_cache and context.run_cache / f"{name}-{key}.json"
    # a missing or damaged file is written again
    with suppress(OSError, ValueError):
        if file:
            return json.loads(file.read_text(encoding="utf-8"))
    found = compute()
    if file:
        file.parent.mkdir(exist_ok=True)
        write_atomic(file, json.dumps(found))
    return found

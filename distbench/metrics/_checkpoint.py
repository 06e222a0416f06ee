"""The numbers of the job ``checkpoint``: what saving and loading cost. No metric that a suite can name."""

from __future__ import annotations

from typing import ClassVar

from distbench.metrics.base import Column, Metric, Pass

_ON_DISK = "until every file is on the disk (fsync) and every rank has ended"
_WHOLE = "parameters, buffers and optimizer state by name in one safetensors file"


def _seconds(name: str, doc: str) -> Column:
    return Column(name, "s", "lower", "max", f"{doc}. From a barrier on, by the slowest rank.")


COLUMNS = (
    _seconds("checkpoint_save_s", f"Saving in shards, in the framework's own format, {_ON_DISK}"),
    _seconds("checkpoint_load_s", "Loading these shards into a fresh engine (from the page cache)"),
    Column("checkpoint_bytes", "B", "lower", "first", "Files of all ranks' shards together."),
    _seconds("full_save_s", f"Gathering the whole state on rank 0 and writing it: {_WHOLE}, {_ON_DISK}"),
    _seconds("full_load_s", "Reading that file on every rank and spreading it over a fresh engine"),
    Column("full_bytes", "B", "lower", "first", f"The file of the whole state: {_WHOLE}."),
)


class CheckpointCosts(Metric):
    """Describes the numbers; the worker of the job takes them."""

    columns: ClassVar[tuple[Column, ...]] = COLUMNS
    passes: ClassVar[frozenset[Pass]] = frozenset()

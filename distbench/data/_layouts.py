"""Layouts of rows of unequal length in batches. Runs in the worker."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from typing import Any

import numpy as np

_MAX_GROUP, _MIN_GROUPS = 50, 4
"""Most batches of a group of rows that are sorted by length, and fewest groups of an epoch, if it can have
so many: the numbers of transformers, whose batches are those of one device and its accumulation."""


def row_length(row: Any) -> int | None:
    """Number of tokens of *row*: of its ``input_ids``, or of the first part of a list; None: unknown."""
    if isinstance(row, Mapping):
        inputs = row.get("input_ids")
    else:
        parts = isinstance(row, tuple | list) and len(row) > 0 and hasattr(row[0], "__len__")
        inputs = row[0] if parts else row
    return None if inputs is None or not hasattr(inputs, "__len__") else len(inputs)


def batches_of_like_length(rows: np.ndarray, lengths: np.ndarray, batch_size: int) -> np.ndarray:
    """Batches (batches, batch_size) of *rows*, each of rows of like length, the longest first.

    Rows are sorted by length within groups of consecutive ones, as by transformers' LengthGroupedSampler. The
    rows of a batch keep their order in *rows*: sorted, the first rank would have the longest.

    Args:
        rows: Indices of rows, as many as fill the batches.
        lengths: Length of each row of the dataset, by its index.
    """
    steps = len(rows) // batch_size
    group = min(_MAX_GROUP, max(1, steps // _MIN_GROUPS)) * batch_size
    places = [
        first + np.argsort(-lengths[rows[first : first + group]], kind="stable")
        for first in range(0, len(rows), group)
    ]
    batches = np.sort(np.concatenate(places).reshape(steps, batch_size), axis=1)
    found: np.ndarray = rows[batches]
    return found


def best_fit_packs(lengths: np.ndarray, capacity: int) -> list[list[int]]:
    """Packs of at most *capacity* tokens, each a list of indices of rows, of which *lengths* has the tokens.

    Best-fit decreasing, as by TRL: the longest row comes first, each goes where least room is left.

    Raises:
        ValueError: a row has no tokens, or more than *capacity*.
    """
    if len(lengths) and (lengths.max() > capacity or lengths.min() < 1):
        index = int(lengths.argmax() if lengths.max() > capacity else lengths.argmin())
        raise ValueError(f"row {index} has {int(lengths[index]):,} tokens; it must have 1 to {capacity:,}")
    packs: list[list[int]] = []
    by_room: dict[int, list[int]] = {}
    rooms: list[int] = []
    for index in np.argsort(-lengths, kind="stable"):
        length = int(lengths[index])
        place = bisect.bisect_left(rooms, length)
        if place == len(rooms):
            pack, room = len(packs), capacity
            packs.append([])
        else:
            room = rooms[place]
            pack = by_room[room].pop()
            if not by_room[room]:
                del by_room[room], rooms[place]
        packs[pack].append(int(index))
        left = room - length
        if left not in by_room:
            by_room[left] = []
            bisect.insort(rooms, left)
        by_room[left].append(pack)
    return packs

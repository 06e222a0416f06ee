"""Simulate the order of passes: bubble and activations in flight. Imports no torch.

A pass is written as in torch.distributed.pipelining: ``2F5`` is stage 2, forward, micro-batch 5; ``B`` is a
full backward pass, ``I`` and ``W`` are its halves, for the input and for the weights.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from distbench.strategies.pp import schedules

_PASS = re.compile(r"(\d+)([FBIW])(\d+)")
_UNITS = {"F": 1, "B": 2, "I": 1, "W": 1}
StagePass = tuple[int, str, int]
"""Stage, kind and micro-batch."""
RankOrder = Sequence[Sequence[StagePass]]
"""Passes of a rank in their order. An entry is a pass, or several whose results are sent after the last."""


def schedule_theory(
    name: schedules.ScheduleName,
    ranks: int,
    micro_batches: int,
    stages_per_rank: int,
    written: Mapping[int, Iterable[object]],
) -> dict[str, Any]:
    """Bubble and in-flight activations of a schedule, by formula or from its order.

    The order is the one that torch has *written* for each rank, used if there is no formula (for 1F1B torch
    writes one that can't run).
    """
    waits = schedules.schedule_bubble(name, ranks, micro_batches, stages_per_rank)
    stages = range(ranks * stages_per_rank)
    kept = [schedules.schedule_in_flight(name, stage, len(stages), micro_batches) for stage in stages]
    if waits is None or None in kept:
        orders = {rank: parse_order(rank_written) for rank, rank_written in written.items()}
        counted = {stage: most for order in orders.values() for stage, most in max_in_flight(order).items()}
        waits = simulate_bubble(orders) if waits is None else waits
        kept = [counted[stage] for stage in stages]
    return {"bubble_theory": waits, "in_flight_theory": kept}


def parse_order(written: Iterable[object]) -> RankOrder:
    """Order of a rank as torch writes it, without communication; an overlapped pair is one entry."""
    entries = (_PASS.findall(str(each)) for each in written if each)
    return [
        [(int(stage), kind, int(micro_batch)) for stage, kind, micro_batch in entry]
        for entry in entries
        if entry
    ]


def max_in_flight(order: RankOrder) -> dict[int, int]:
    """Stages of a rank -> maximum number of micro-batches whose activations it holds at once.

    They are held from the forward pass to the end of the last part of the backward pass.
    """
    kept: dict[int, set[int]] = {}
    most: dict[int, int] = {}
    for stage, kind, micro_batch in itertools.chain.from_iterable(order):
        held = kept.setdefault(stage, set())
        held.difference_update([micro_batch] if kind in "BW" else [])
        held.update([micro_batch] if kind == "F" else [])
        most[stage] = max(most.get(stage, 0), len(held))
    return most


def simulate_bubble(orders: Mapping[int, RankOrder]) -> float:
    """Fraction of a step that a rank idles, mean over ranks.

    Every forward pass and each half of a backward pass takes equally long, and messages take no time: the
    unit times of Qi et al. 2024 (arXiv:2401.10241, section 2).

    Raises:
        ValueError: the order deadlocks: each rank waits for another.
    """
    run = _Simulation(orders)
    while any(run.pending.values()):
        if not sum(run.advance(rank) for rank in run.pending):
            raise ValueError(f"no rank can continue: {[order[0] for order in run.pending.values() if order]}")
    worked = sum(_UNITS[kind] for order in orders.values() for entry in order for _, kind, _ in entry)
    return 1 - worked / (max(run.busy_until.values()) * len(orders))


class _Simulation:
    """Runs the orders of all ranks in units of time."""

    def __init__(self, orders: Mapping[int, RankOrder]) -> None:
        self.pending = {rank: list(order) for rank, order in orders.items()}
        self.busy_until = dict.fromkeys(orders, 0)
        """Time at which each rank finishes its current entry."""
        self._end_times: dict[StagePass, int] = {}
        self._available_at: dict[StagePass, int] = {}
        """Time at which the result of a pass is available on other ranks."""
        self._rank_of = {each[0]: rank for rank, order in orders.items() for entry in order for each in entry}

    def advance(self, rank: int) -> bool:
        """Run the next entry of *rank* if the times of its inputs are known; return True if it ran."""
        if not self.pending[rank]:
            return False
        free, ended = self.busy_until[rank], dict[StagePass, int]()
        for each in self.pending[rank][0]:
            if (begin := self._start_time(each, rank, ended)) is None:
                return False
            free = ended[each] = max(free, begin) + _UNITS[each[1]]
        self._end_times |= ended
        self._available_at |= dict.fromkeys(ended, free)
        self.busy_until[rank] = free
        del self.pending[rank][0]
        return True

    def _start_time(self, one: StagePass, rank: int, ended: Mapping[StagePass, int]) -> int | None:
        """Time at which the inputs of the pass *one* are available; None: not yet known."""
        needed = _dependencies(one, last=max(self._rank_of))
        if not needed:
            return 0
        own = self._rank_of[needed[0][0]] == rank
        known = {**self._end_times, **ended} if own else self._available_at
        return next((known[each] for each in needed if each in known), None)


def _dependencies(one: StagePass, last: int) -> list[StagePass]:
    """Passes of which *one* needs any one; empty: it begins with the batch."""
    stage, kind, micro_batch = one
    if kind == "F":
        return [(stage - 1, "F", micro_batch)] if stage else []
    if kind == "W":
        return [(stage, "I", micro_batch)]
    if stage == last:
        return [(stage, "F", micro_batch)]
    return [(stage + 1, half, micro_batch) for half in ("B", "I")]

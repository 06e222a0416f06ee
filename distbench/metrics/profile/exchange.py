"""Exchange between ranks in the analysis of a profile: real, or of stored traces in one process."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

Exchange = Generator[object, list[Any], T]
"""Work of a rank that yields what it tells the others, and gets the list of what every rank told."""


def run_in_ranks(own: Exchange[T], ranks: int) -> T:
    """Do *own* work of this rank among *ranks* ranks. A collective call."""
    answers: list[Any] | None = None
    while True:
        try:
            mine = own.send(answers) if answers is not None else next(own)
        except StopIteration as done:
            result: T = done.value
            return result
        answers = [mine] * ranks
        if ranks > 1:
            import torch.distributed as dist

            dist.all_gather_object(answers, mine)


def run_together(works: Sequence[Exchange[T]]) -> list[T]:
    """Do the *works* of all ranks in this process."""
    answers: list[Any] | None = None
    while True:
        try:
            answers = [work.send(answers) if answers is not None else next(work) for work in works]
        except StopIteration as done:
            # all end at the same place: the first has, and the others do
            return [done.value, *(_last(work, answers) for work in works[1:])]


def _last(work: Exchange[T], answers: list[Any] | None) -> T:
    try:
        work.send(answers) if answers is not None else next(work)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("ranks exchange different numbers of times")

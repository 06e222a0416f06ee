"""Times the links between the members of a group: each pair by itself, and all together."""

import statistics
import time
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from distbench.ipc.diagnosis_files import Exchange, Total

# long against a round trip, and short enough for every pair of a large cluster
_ENOUGH_S = 0.03
_LEAST, _MOST = 1 << 16, 1 << 26
_REPEATS = 3
_ROUND_TRIPS = 9


def rounds(members: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """Every pair of *members*, lower first, in rounds in which nobody is in two of them.

    The circle method: https://en.wikipedia.org/wiki/Round-robin_tournament#Circle_method
    """
    seats: list[int | None] = [*members, *([None] if len(members) % 2 else [])]
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]


def exchange(own: int, pair: tuple[int, int], device: torch.device) -> Exchange | None:
    """Exchange messages with the other of *pair*; what came of it if *own* is the first of the two."""
    peer = pair[1] if own == pair[0] else pair[0]
    round_trips, ahead_s = _greet(own < peer, peer, device)
    size, seconds = _LEAST, _swap(peer, _LEAST, device)
    while seconds < _ENOUGH_S and size < _MOST:
        size *= 4
        seconds = _swap(peer, size, device)
    seconds = statistics.median(_swap(peer, size, device) for _ in range(_REPEATS))
    if own > peer:
        return None
    return Exchange(peer, size, seconds, statistics.median(round_trips), ahead_s)


def total(device: torch.device) -> Total:
    """Time an all-reduce over all members; all get the same."""
    size = _LEAST
    while (seconds := _reduced(size, device)) < _ENOUGH_S and size < _MOST:
        size *= 4
    seconds = statistics.median(_reduced(size, device) for _ in range(_REPEATS))
    return Total(dist.get_world_size(), size, seconds)


def _greet(is_first: bool, peer: int, device: torch.device) -> tuple[list[float], float]:
    """Seconds of round trips, and by how much the clock of *peer* is ahead, both on the first of the two.

    The offset is that of the shortest round trip, as in NTP (RFC 5905, section 8).
    """
    trips, offsets = [], []
    word = torch.zeros(1, dtype=torch.float64, device=device)
    for _ in range(_ROUND_TRIPS):
        if is_first:
            sent_at, began = time.time(), time.perf_counter()
            dist.send(word, peer)
            dist.recv(word, peer)
            told = word.item()
            trips.append(time.perf_counter() - began)
            offsets.append(told - (sent_at + trips[-1] / 2))
        else:
            dist.recv(word, peer)
            word.fill_(time.time())
            dist.send(word, peer)
    return trips, offsets[trips.index(min(trips))] if trips else 0.0


def _swap(peer: int, size: int, device: torch.device) -> float:
    """Seconds that both directions of *size* bytes took, the same number on both sides."""
    mine = torch.zeros(size, dtype=torch.uint8, device=device)
    theirs = torch.empty_like(mine)
    _both(mine[:1], theirs[:1], peer)
    _finish(device)
    began = time.perf_counter()
    _both(mine, theirs, peer)
    _finish(device)
    seconds = torch.tensor([time.perf_counter() - began], dtype=torch.float64, device=device)
    told = torch.empty_like(seconds)
    _both(seconds, told, peer)
    return max(seconds.item(), told.item())


def _both(mine: torch.Tensor, theirs: torch.Tensor, peer: int) -> None:
    sides = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)]
    for work in dist.batch_isend_irecv(sides):
        work.wait()


def _reduced(size: int, device: torch.device) -> float:
    """Seconds that an all-reduce of *size* bytes took on the slowest."""
    tensor = torch.zeros(size // 4, device=device)
    dist.barrier()
    _finish(device)
    began = time.perf_counter()
    dist.all_reduce(tensor)
    _finish(device)
    slowest = torch.tensor([time.perf_counter() - began], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest.item())


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

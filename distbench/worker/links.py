"""Measure the links between ranks: each pair, and an all-reduce over all."""

import statistics
import time
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from distbench.ipc.diagnosis_files import AllReduceTest, LinkTest

# long compared with a round trip, and short enough for every pair of a large cluster
_MIN_DURATION_S = 0.03
_MIN_BYTES, _MAX_BYTES = 1 << 16, 1 << 26
_REPEATS = 3
_ROUND_TRIPS = 9


def round_robin_pairs(members: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """Yield rounds that cover every pair of *members*, lower first; no member is twice in a round.

    The circle method: https://en.wikipedia.org/wiki/Round-robin_tournament#Circle_method
    """
    seats: list[int | None] = [*members, *([None] if len(members) % 2 else [])]
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]


def measure_pair(member: int, pair: tuple[int, int], device: torch.device) -> LinkTest | None:
    """Exchange messages within *pair*; return the result if *member* is the lower of the two."""
    peer = pair[1] if member == pair[0] else pair[0]
    round_trips, ahead_s = _measure_round_trips(member < peer, peer, device)
    size, seconds = _MIN_BYTES, _time_exchange(peer, _MIN_BYTES, device)
    while seconds < _MIN_DURATION_S and size < _MAX_BYTES:
        size *= 4
        seconds = _time_exchange(peer, size, device)
    seconds = statistics.median(_time_exchange(peer, size, device) for _ in range(_REPEATS))
    if member > peer:
        return None
    return LinkTest(peer, size, seconds, statistics.median(round_trips), ahead_s)


def measure_all_reduce(device: torch.device) -> AllReduceTest:
    """Time an all-reduce over all members; all get the same result."""
    size = _MIN_BYTES
    while (seconds := _time_all_reduce(size, device)) < _MIN_DURATION_S and size < _MAX_BYTES:
        size *= 4
    seconds = statistics.median(_time_all_reduce(size, device) for _ in range(_REPEATS))
    return AllReduceTest(dist.get_world_size(), size, seconds)


def _measure_round_trips(is_first: bool, peer: int, device: torch.device) -> tuple[list[float], float]:
    """Seconds of round trips, and seconds that *peer*'s clock is ahead, on the first of the two.

    The offset is that of the shortest round trip, as in NTP (RFC 5905, section 8).
    """
    trips, offsets = [], []
    word = torch.zeros(1, dtype=torch.float64, device=device)
    for _ in range(_ROUND_TRIPS):
        if is_first:
            sent_at, began = time.time(), time.perf_counter()
            _exchange(dist.P2POp(dist.isend, word, peer))
            _exchange(dist.P2POp(dist.irecv, word, peer))
            answer = word.item()
            trips.append(time.perf_counter() - began)
            offsets.append(answer - (sent_at + trips[-1] / 2))
        else:
            _exchange(dist.P2POp(dist.irecv, word, peer))
            # a wait for NCCL is one of the stream, not of the host
            _synchronize(device)
            word.fill_(time.time())
            _exchange(dist.P2POp(dist.isend, word, peer))
    return trips, offsets[trips.index(min(trips))] if trips else 0.0


def _time_exchange(peer: int, size: int, device: torch.device) -> float:
    """Seconds of a transfer of *size* bytes in both directions, the same number on both sides."""
    mine = torch.zeros(size, dtype=torch.uint8, device=device)
    theirs = torch.empty_like(mine)
    _send_and_receive(mine[:1], theirs[:1], peer)
    _synchronize(device)
    began = time.perf_counter()
    _send_and_receive(mine, theirs, peer)
    _synchronize(device)
    seconds = torch.tensor([time.perf_counter() - began], dtype=torch.float64, device=device)
    times = torch.empty_like(seconds)
    _send_and_receive(seconds, times, peer)
    return max(seconds.item(), times.item())


def _send_and_receive(sent: torch.Tensor, received: torch.Tensor, peer: int) -> None:
    _exchange(dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, received, peer))


def _exchange(*messages: dist.P2POp) -> None:
    """Exchange *messages* as a batch: for lone ones NCCL keeps a communicator for each pair of ranks."""
    for work in dist.batch_isend_irecv(list(messages)):
        work.wait()


def _time_all_reduce(size: int, device: torch.device) -> float:
    """Seconds of an all-reduce of *size* bytes on the slowest rank."""
    tensor = torch.zeros(size // 4, device=device)
    dist.barrier()
    _synchronize(device)
    began = time.perf_counter()
    dist.all_reduce(tensor)
    _synchronize(device)
    slowest = torch.tensor([time.perf_counter() - began], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest.item())


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

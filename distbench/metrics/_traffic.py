"""Bandwidth and bytes on the wire, as nccl-tests defines them (doc/PERFORMANCE.md). Without torch."""

from __future__ import annotations


def bus_factor(op: str, n: int) -> float | None:
    """Return what turns algorithm bandwidth into bus bandwidth for *op* in a group of *n* ranks.

    All-reduce 2(n-1)/n; all-gather, reduce-scatter and all-to-all (n-1)/n; broadcast and reduce 1.
    None: nccl-tests defines none.
    """
    if op == "all_reduce":
        return 2 * (n - 1) / n
    if op in ("all_gather", "reduce_scatter", "all_to_all"):
        return (n - 1) / n
    return 1.0 if op in ("broadcast", "reduce") else None


def wire_factor(ran: str, n: int) -> float | None:
    """Return how many times the full array a rank sends, on average, when the backend runs *ran*.

    Rings, as NCCL's and gloo's default algorithms are: an all-reduce is a reduce-scatter and an
    all-gather. A broadcast brings the array once to each rank but the root. None: not known.
    """
    if ran == "all_reduce":
        return 2 * (n - 1) / n
    if ran in ("all_gather", "reduce_scatter", "all_to_all", "broadcast"):
        return (n - 1) / n
    return 1.0 if ran in ("send", "recv", "send_recv") else None

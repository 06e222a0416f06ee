"""State what limits a step: the largest loss of time that can be avoided, or the computation itself.

The rules need seconds and nothing else, so they hold for any step that was taken apart, whoever ran it.
"""

from __future__ import annotations

from dataclasses import dataclass

from distbench.analysis.case_summary import NOT_MEASURED, CaseSummary
from distbench.analysis.length_imbalance import length_imbalance
from distbench.analysis.loader import lost_share
from distbench.analysis.offload_time import offload_times
from distbench.analysis.scaling import imbalance_share, waiting_share
from distbench.analysis.step_limit_kinds import COMPUTATION_ADVICE, LOSSES, NOISE_ADVICE, Limit, StepLoss
from distbench.analysis.step_timeline import bare_rank_steps
from distbench.core.units import format_bytes

_NOT_PROFILED = "no step was profiled; set measure.profile_steps to 1 or more, and list the metric profile"
_NOT_COMPUTING: tuple[Limit, ...] = (
    "data",
    "bubble",
    "imbalance",
    "lengths",
    "communication",
    "latency",
    "offload",
    "host",
)
"""Losses in which nothing is computed, each its own time. Recomputation and optimizer are computation."""
_SMALL_CALL = 2**18
"""Mean payload in bytes below which latency limits collectives, not bandwidth. Where one exceeds the other
depends on the link; DDP's smallest bucket, the first, has 2**20."""
_MANY_CALLS = 10
"""Fewest small calls that could be merged."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step, mean over ranks, and its collectives; None: unknown.

    All times but ``step`` are parts of it. Those in which nothing is computed do not overlap;
    ``recomputation`` and ``optimizer`` are work (with idle time in older records of CPUs).
    """

    step: float
    data: float | None = None
    bubble: float | None = None
    imbalance: float | None = None
    """Waiting for slower ranks, unless it is ``lengths``."""
    lengths: float | None = None
    """Waiting for ranks that are slower because their rows are longer."""
    communication: float | None = None
    """Exposed, without waiting for other ranks, unless it is ``latency``."""
    latency: float | None = None
    """Exposed, as ``communication``, of collectives that are many and small."""
    recomputation: float | None = None
    offload: float | None = None
    """Copies to and from the host that nothing hides, and waiting for what the host updates."""
    optimizer: float | None = None
    host: float | None = None
    """Idle, without ``data`` and ``offload``."""
    calls: float | None = None
    """Number of collectives of a rank in a step."""
    call_bytes: float | None = None
    """Mean payload of a collective, in bytes."""
    most_tokens: float | None = None
    """Most tokens of a rank over the mean of the ranks."""

    def share(self, limit: Limit) -> float | None:
        """Share of the step that is lost to *limit*; None if unknown."""
        lost: float | None = getattr(self, limit)
        return None if lost is None else max(0.0, lost) / self.step


@dataclass(frozen=True)
class StepLimit:
    """Limit of the step of a case."""

    limit: Limit
    word: str
    share: float | None
    """Share of the step; None for noise."""
    noun: str
    """What that share of the step went into."""
    sentence: str
    """The numbers that it rests on."""
    advice: str


def limit_of(times: StepTimes) -> StepLimit:
    """The largest loss that counts, or the computation."""
    shares = {loss: share for loss in LOSSES if (share := times.share(loss.limit)) is not None}
    counted = [loss for loss in shares if shares[loss] >= loss.least]
    worst = max(counted, key=lambda loss: shares[loss], default=None)
    if worst is not None:
        lost = shares[worst]
        return StepLimit(
            worst.limit,
            worst.word,
            lost,
            worst.noun,
            f"{lost:.0%} of the step is {worst.noun}{_calls_text(worst, times)}{_tokens_text(worst, times)}",
            worst.advice,
        )
    rest = max(0.0, 1 - sum(share for loss, share in shares.items() if loss.limit in _NOT_COMPUTING))
    largest = max(shares, key=lambda loss: shares[loss], default=None)
    beside = f"; the largest loss, {shares[largest]:.0%}, is {largest.noun}" if largest else ""
    return StepLimit(
        "computation",
        "compute-bound",
        rest,
        "computation",
        f"{rest:.0%} of the step is computation{beside}",
        COMPUTATION_ADVICE,
    )


def _calls_text(loss: StepLoss, times: StepTimes) -> str:
    """Number and size of the collectives, which tell latency from bandwidth; empty for other losses."""
    if loss.limit not in ("communication", "latency") or not times.calls or times.call_bytes is None:
        return ""
    return f", in {times.calls:.0f} calls of {format_bytes(times.call_bytes)} on average"


def _tokens_text(loss: StepLoss, times: StepTimes) -> str:
    """Tokens of the rank that has most, if that is the loss; otherwise empty."""
    if loss.limit != "lengths" or times.most_tokens is None:
        return ""
    return f"; the rank with most tokens in a step has {times.most_tokens:.2f}x the mean"


def step_limit(row: CaseSummary) -> StepLimit | str:
    """Limit of the step of a case, or the reason why it is unknown."""
    if not row.measured:
        return row.reason or row.status
    if row.degraded:
        return StepLimit("noise", "noise", None, "", f"other work disturbed it: {row.degraded}", NOISE_ADVICE)
    times = _step_times(row)
    if times is None:
        why = row.absence_reasons.get("profile_step_s", NOT_MEASURED)
        return _NOT_PROFILED if why == NOT_MEASURED else why
    return limit_of(times)


def _step_times(row: CaseSummary) -> StepTimes | None:
    step = _value(row, "profile_step_s")
    if not step:
        return None
    exposed, data = (_value(row, f"profile_{name}_s") for name in ("exposed_comm", "data"))
    if (lost := lost_share(row)) is not None:
        # measured without the profiler, which slows the step and not the workers of a loader
        data = lost * step
    bubble = _value(row, "bubble_s")
    waited = waiting_share(row)
    waiting = min(waited * step, exposed) if waited is not None and exposed is not None else None
    if bubble is not None:
        # what a stage waits for another is its bubble; ranks of a pipeline do different work by design
        waiting = None if waiting is None else 0.0
    communication = None if exposed is None else max(0.0, exposed - (waiting or 0.0) - (bubble or 0.0))
    idle = _idle_share(row)
    calls, moved = _value(row, "comm_calls"), _value(row, "comm_bytes")
    call_bytes = moved / calls if calls and moved is not None else None
    copies, gaps = offload_times(row) or (None, None)
    by_length = length_imbalance(row.representative_trial) if bubble is None else None
    uneven = waiting if bubble is not None or by_length else _imbalance(row, step, waiting)
    small = bool(calls and calls >= _MANY_CALLS and call_bytes is not None and call_bytes < _SMALL_CALL)
    return StepTimes(
        step,
        data=data,
        bubble=bubble,
        imbalance=None if by_length else uneven,
        lengths=uneven if by_length else None,
        most_tokens=by_length.ratio if by_length else None,
        communication=None if small else communication,
        latency=communication if small else None,
        recomputation=_recomputation(row),
        # the copy of a batch counts as data
        offload=None if copies is None or gaps is None else max(0.0, copies - (data or 0.0)) + gaps,
        optimizer=_value(row, "profile_optimizer_s"),
        host=None if idle is None else max(0.0, idle * step - (data or 0.0) - (gaps or 0.0)),
        calls=calls,
        call_bytes=call_bytes,
    )


def _imbalance(row: CaseSummary, step: float, waiting: float | None) -> float | None:
    """Seconds of *step* that ranks lose to slower ones, of which they wait for *waiting* in this step.

    A rank that is late after its last collective is waited for in the next step.
    """
    lost = imbalance_share(row)
    known = [seconds for seconds in (waiting, None if lost is None else lost * step) if seconds is not None]
    return max(known, default=None)


def _value(row: CaseSummary, name: str) -> float | None:
    return row.values[name].value if name in row.values else None


def _idle_share(row: CaseSummary) -> float | None:
    """Share of a timed step in which no rank computes or communicates; None if unknown.

    The profiler lengthens the gaps and not what runs, so what ran under it is compared with the timed step.
    On a CPU it is that of the rank with the smallest share: the others wait for a rank that is idle alone.
    If the timed step is longer than a rank's profiled one, it was disturbed, or the rank ended before the
    others: the gaps of the profiled one are the most that it has.
    """
    if row.case.device == "cuda":
        return gpu_idle_share(row)
    kept = bare_rank_steps(row.representative_trial) if row.representative_trial else []
    timed = _value(row, "step_s")
    if not kept or not timed:
        return None
    return max(0.0, min(1 - step.busy / min(timed, step.seconds) for step in kept))


def gpu_idle_share(row: CaseSummary) -> float | None:
    """Share of a timed step in which nothing ran on the GPU; None on a CPU, or without a profile.

    The profiler lengthens the gaps between kernels but not the kernels, so the kernels' time under the
    profiler is compared with the timed step.
    """
    under_profiler, timed = (_value(row, name) for name in ("profile_step_s", "step_s"))
    # older records have no part for idle time alone
    idle = _value(row, "profile_idle_s") if "profile_idle_s" in row.values else _value(row, "profile_other_s")
    if row.case.device != "cuda" or under_profiler is None or idle is None or not timed:
        return None
    return max(0.0, 1 - (under_profiler - idle) / min(timed, under_profiler))


def _recomputation(row: CaseSummary) -> float | None:
    """Seconds that recomputing takes: its share of the FLOPs, of the time of both passes."""
    flops, more = (_value(row, name) for name in ("flops_per_sample", "recomputed_flops_per_sample"))
    passes = [_value(row, f"profile_{name}_s") for name in ("forward", "backward")]
    if not flops or more is None or None in passes:
        return None
    return more / (flops + more) * sum(each or 0.0 for each in passes)

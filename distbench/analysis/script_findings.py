"""Mistakes and losses in a script that was measured unchanged, each with rank, number and what to do.

What limits its steps is said as for suites (``step_limits``); here is what only a script that someone wrote
by hand gets wrong.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.analysis.losses.case_losses import finite_values
from distbench.analysis.ranks import STRAGGLER_RATIO, mean_by_rank
from distbench.core.text import join_limited
from distbench.core.units import format_bytes, format_count
from distbench.metrics.steptime import drift
from distbench.record import Record

_SHARED_ROWS = 0.5
"""Share of a rank's rows that another rank also has, from which on it is no chance of sampling."""
_SMALL_CALL = 2**18
"""Mean payload in bytes below which latency limits collectives (as in ``step_limits``)."""
_MANY_CALLS = 10
_LOGGED_BYTES = 64
_LEAK_BYTES = 8 << 20
"""Growth over the timed steps below which caches of libraries explain it."""
_LEAK_SHARE = 0.01
_SLOWER = 0.1
"""Growth of the step time over the timed steps from which on it is a finding."""
_MANY_STEPS = 6
"""Profiled steps in which one of two ranks is the slower one of each by chance once in 32 scripts."""
_STRAGGLER_RATIO_OF_FEW = 1.5
"""Ratio for fewer steps: other work on the machine slows one rank in three steps of milliseconds by 1.3."""
_SIGNIFICANCE = 0.001
_ACCUMULATED = 1.5
"""Times the gradients from which on DDP reduces them more than once in a step."""


@dataclass(frozen=True)
class ScriptFinding:
    """One finding in a script."""

    kind: str
    """Kind of finding, for programs."""
    sentence: str
    """The numbers that it rests on."""
    advice: str
    """What to do."""

    @property
    def text(self) -> str:
        """Sentence and advice."""
        return f"{self.sentence}: {self.advice}."


def script_findings(record: Record) -> list[ScriptFinding]:
    """Findings in the script of *record*; none if it is not of a script."""
    ranks = [row for row in record.tables.get("script_ranks", []) if isinstance(row.get("rank"), int)]
    if not ranks:
        return []
    return [
        *_same_rows(ranks),
        *_replicas_apart(ranks),
        *_unused_parameters(ranks),
        *_repeated_reductions(record, ranks),
        *_small_buckets(record, ranks),
        *_slow_rank(record),
        *_growing_memory(record),
        *_slower_steps(record),
        *_value_reads(record),
    ]


def _same_rows(ranks: Sequence[dict[str, Any]]) -> Iterator[ScriptFinding]:
    if any(row.get("shares_rows") for row in ranks):
        return
    rows = {row["rank"]: set(str(row.get("rows") or "").split()) for row in ranks}
    known = {rank: own for rank, own in rows.items() if own}
    for rank, own in [*known.items()][1:]:
        for other, theirs in known.items():
            if other >= rank:
                break
            shared = len(own & theirs) / len(own)
            if shared >= _SHARED_ROWS:
                yield ScriptFinding(
                    "same-rows",
                    f"Ranks {other} and {rank} train on the same rows ({shared:.0%} of those of their first "
                    "batches)",
                    "give each rank its own, with DistributedSampler or a seed that depends on the rank",
                )
                return


def _replicas_apart(ranks: Sequence[dict[str, Any]]) -> Iterator[ScriptFinding]:
    digests = {row["rank"]: row["parameter_digest"] for row in ranks if row.get("parameter_digest")}
    if len(set(digests.values())) < 2:
        return
    usual = Counter(digests.values()).most_common(1)[0][0]
    differing = [rank for rank, digest in digests.items() if digest != usual]
    yield ScriptFinding(
        "replicas-apart",
        f"After the measured steps, {format_count(len(differing), 'rank')} of {len(digests)} "
        f"({join_limited([str(rank) for rank in differing])}) had other parameters than the rest",
        "all replicas must begin with equal weights and update with equal gradients; wrap the model in "
        "DistributedDataParallel, and call it, not the module inside",
    )


def _unused_parameters(ranks: Sequence[dict[str, Any]]) -> Iterator[ScriptFinding]:
    for row in ranks:
        if count := int(row.get("unused_count") or 0):
            names = join_limited(str(row.get("unused_parameters") or "").split(), limit=3)
            yield ScriptFinding(
                "no-gradient",
                f"{format_count(count, 'trained parameter')} got no gradient on rank {row['rank']} ({names})",
                "freeze them with requires_grad_(False), or use them in the loss",
            )
            return


def _reductions(record: Record, rank: int) -> list[float]:
    """Bytes of each all-reduce of *rank* in its first counted step, without those of a few numbers to log."""
    rows = record.tables.get("collectives", [])
    return [
        float(row["bytes"])
        for row in rows
        if row.get("rank") == rank and row.get("op") == "all_reduce" and row.get("step") == 0
        if float(row["bytes"]) > _LOGGED_BYTES
    ]


def _repeated_reductions(record: Record, ranks: Sequence[dict[str, Any]]) -> Iterator[ScriptFinding]:
    first, passes = ranks[0], record.case.batch.gradient_accumulation_steps
    size = first.get("gradient_bytes")
    if not size or passes < 2:
        return
    reduced = sum(_reductions(record, first["rank"])) / size
    if reduced >= _ACCUMULATED:
        yield ScriptFinding(
            "reduces-each-micro-batch",
            f"DDP reduced the gradients {reduced:.1f} times in a step of {passes} backward passes",
            "run all but the last inside model.no_sync()",
        )


def _small_buckets(record: Record, ranks: Sequence[dict[str, Any]]) -> Iterator[ScriptFinding]:
    calls = _reductions(record, ranks[0]["rank"])
    if not ranks[0].get("gradient_bytes") or len(calls) < _MANY_CALLS:
        return
    average = statistics.fmean(calls)
    if average < _SMALL_CALL:
        yield ScriptFinding(
            "small-buckets",
            f"DDP reduced the gradients in {len(calls)} calls of {format_bytes(average)} on average",
            "fewer and larger calls cost less latency; use its default buckets (bucket_cap_mb of 25)",
        )


def _slow_rank(record: Record) -> Iterator[ScriptFinding]:
    means = mean_by_rank(record)
    if len(means) < 2 or record.degraded:
        return
    worst = max(means, key=lambda rank: means[rank])
    others = statistics.median(seconds for rank, seconds in means.items() if rank != worst)
    # in each profiled step, as there are few
    steps = [[seconds for seconds in step if seconds] for step in zip(*record.samples["work_s"], strict=True)]
    ratio = STRAGGLER_RATIO if len(steps) >= _MANY_STEPS else _STRAGGLER_RATIO_OF_FEW
    is_always = all(
        len(step) == len(means) and step[worst] > ratio * statistics.median(step[:worst] + step[worst + 1 :])
        for step in steps
    )
    if others and is_always:
        yield ScriptFinding(
            "slow-rank",
            f"Rank {worst} works {means[worst] / others:.1f} times as long in a step as the others, which "
            "wait for it",
            "give all ranks equal work, and find out what only this rank does",
        )


def _growing_memory(record: Record) -> Iterator[ScriptFinding]:
    for rank, steps in enumerate(record.samples.get("script_held_bytes", [])):
        held = finite_values(steps)
        third = len(held) // 3
        if third < 3:
            continue
        begin, middle, end = (
            statistics.median(part) for part in (held[:third], held[third:-third], held[-third:])
        )
        # a cache that fills stops growing; a leak does not
        is_steady = min(middle - begin, end - middle) > 0.25 * (end - begin)
        if end - begin > max(_LEAK_BYTES, _LEAK_SHARE * begin) and is_steady:
            per_step = (end - begin) / (len(held) - third)
            yield ScriptFinding(
                "growing-memory",
                f"The memory of rank {rank} grew by {format_bytes(end - begin)} over {len(held)} steps, "
                f"{format_bytes(per_step)} a step",
                "look for tensors that are kept from step to step, such as a list of losses with graphs",
            )
            return


def _slower_steps(record: Record) -> Iterator[ScriptFinding]:
    for rank, steps in enumerate(record.samples.get("step_s", [])):
        seconds = finite_values(steps)
        if len(seconds) < 2 * drift.MIN_STEPS or record.degraded:
            continue
        slowing = drift.relative_change(seconds)
        if slowing > _SLOWER and drift.falling_p_value([-each for each in seconds]) < _SIGNIFICANCE:
            yield ScriptFinding(
                "slower-steps",
                f"Steps of rank {rank} became {slowing:.0%} slower over {len(seconds)} timed steps",
                "look for work that grows with the step, such as a list that is searched or a growing graph",
            )
            return


def _value_reads(record: Record) -> Iterator[ScriptFinding]:
    reads: Counter[str] = Counter()
    for row in record.tables.get("script_value_reads", []):
        if row.get("rank") == 0:
            reads[str(row.get("place"))] += int(row.get("calls") or 0)
    if reads:
        places = join_limited([f"{place} ({calls}x)" for place, calls in reads.most_common()], limit=4)
        waits = (
            "where the host waits for the GPU" if record.case.device == "cuda" else "a GPU would wait there"
        )
        yield ScriptFinding(
            "value-read",
            f"Each step reads values of tensors, {waits}: {places}",
            "keep them on the device, and read them every so many steps",
        )

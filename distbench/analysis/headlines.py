"""Key findings of a run in sentences, never more than the trials support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distbench.analysis.diagnosis import diagnosis
from distbench.analysis.run import AnalysedRun
from distbench.analysis.settings import offloads_in_vain
from distbench.analysis.summary import MEMORY, PENDING, THROUGHPUT, CaseSummary
from distbench.analysis.text import listed, one_line, parts, shared_parts
from distbench.analysis.verdict import Verdict
from distbench.case import CHOICES
from distbench.grouping import grouped
from distbench.record import Status
from distbench.units import bytes_text, number_text

# an allocator rounds, and small buffers come and go: a smaller difference is none
_SAME_MEMORY = 0.01
_MOST_FAILURES = 20
ADVICE: dict[str, str] = {
    Status.UNSUPPORTED: "Not a failure: the reason says what this machine is missing.",
    Status.OOM_GPU: "The device ran out of memory. Try a smaller micro-batch with more accumulation, "
    "activation checkpointing, or a strategy that shards more (zero3, fsdp) or offloads to the host.",
    Status.OOM_HOST: "The host ran out of memory. Try fewer ranks per host, less offload to the CPU (or "
    "offload to NVMe), and fewer data loader workers.",
    Status.CRASHED: "Read the traceback of the named rank: it failed first, the others followed. "
    "Run this case alone (--only) to see whether it fails again.",
    Status.HANG: "One rank stopped making progress. Compare what each rank did last: the one that is behind "
    "is the cause, the others wait for it. Raise limits.step if steps are known to take that long.",
    Status.INIT_TIMEOUT: "The ranks did not connect, or the engine was not ready in time. Check that every "
    "host can reach the others' addresses and ports; raise limits.start where joining, or limits.build "
    "where building the model, is known to take that long.",
    Status.INVALID_NAN: "The loss was no longer finite. Try a lower learning rate, gradient clipping, "
    "or bf16 instead of fp16; if single trains well with the same settings, suspect the strategy.",
    Status.MISMATCH: "The engine did not do what the suite asked for, so its numbers would belong to a "
    "different case. The reason names the setting: ask for what it does, or find what overrides it.",
    Status.PREPARE_FAILED: "Nothing was launched: C++ ops or initial weights could not be built. Check for a "
    "compiler and ninja, for free disk space, and the end of the log.",
    Status.CANCELLED: "It was stopped from outside. Use --resume RUN to fill it in.",
}
"""Status -> a sentence or two; every status but ``measured``."""


def sentences(run: AnalysedRun) -> list[str]:
    """Key findings of *run*: the fastest, the lowest memory, caveats, verdicts, failures."""
    judged = [f"{kind.capitalize()}: {line}." for kind in run.kinds for line in judgements(run, kind)]
    return [*findings(run), *judged, *failures(run)]


def findings(run: AnalysedRun) -> list[str]:
    """The fastest case and the one with the lowest memory at each world size, and caveats."""
    cases = run.cases
    measured = [row for row in cases if row.measured]
    sound = [row for row in cases if row.comparable]
    best = []
    for rows in _comparable(sound):
        group = _Group(rows, _where(rows, sound), run.names(rows))
        best += [_fastest(group), _lowest_memory(group)]
    return [
        sentence
        for sentence in [
            *best,
            *diagnosis(run),
            *_notes(cases, measured),
        ]
        if sentence
    ]


def failures(run: AnalysedRun) -> list[str]:
    """Cases that failed, wholly or in part, and those that can't run here, with why."""
    cases = run.cases
    bad = [row for row in cases if row.failed and row.status != Status.UNSUPPORTED]
    sentences = [f"{failure_title(row)}: {one_line(row.reason)}" for row in bad[:_MOST_FAILURES]]
    if len(bad) > _MOST_FAILURES:
        sentences.append(f"{len(bad) - _MOST_FAILURES} more cases failed; the report lists them all.")
    return [*sentences, *_unsupported(cases)]


def failure_title(row: CaseSummary) -> str:
    """What failed and how: ``Failed: ddp/ws2: crashed, rank 1 in time``."""
    name = one_line(row.case.name)
    if row.measured:
        return f"Partly failed: {name}"
    # most reasons begin with the rank
    named = row.failure is None or row.failure.rank is None or row.reason.startswith("rank ")
    where = "" if named or row.failure is None else f", rank {row.failure.rank} in {row.failure.phase}"
    return f"Failed: {name}: {row.status}{where}"


@dataclass(frozen=True)
class _Group:
    """Cases that may be compared, and their names."""

    rows: list[CaseSummary]
    where: str
    names: dict[str, str]

    def name(self, row: CaseSummary) -> str:
        return self.names[row.case.id]

    def ranked(self, column: str, sign: int) -> list[CaseSummary]:
        return sorted(
            (row for row in self.rows if column in row.values),
            key=lambda row: sign * row.values[column].value,
        )


def _comparable(rows: list[CaseSummary]) -> list[list[CaseSummary]]:
    """Cases grouped by what they train on how many devices; those alone in their group are left out."""
    groups = grouped(rows, lambda row: row.case.work(CHOICES)).values()
    return sorted((rows for rows in groups if len(rows) > 1), key=lambda rows: rows[0].case.world_size)


def _where(rows: list[CaseSummary], measured: list[CaseSummary]) -> str:
    size = rows[0].case.world_size
    where = f"on {size} device{'s' if size > 1 else ''}"
    others = [row for row in measured if row.case.world_size == size]
    if len(others) == len(rows):
        return where
    shared = shared_parts([row.case for row in rows])
    distinct = [part for part in shared if any(part not in parts(row.case) for row in others)]
    return f"{where} with {', '.join(distinct)}" if distinct else where


def _fastest(group: _Group) -> str:
    ranked = group.ranked(THROUGHPUT, -1)
    if len(ranked) < 2 or not ranked[0].values[THROUGHPUT].value:
        return ""
    best, second = ranked[:2]
    first, other = best.values[THROUGHPUT], second.values[THROUGHPUT]
    lead = f"Fastest {group.where}: {group.name(best)}, {number_text(first.value)} tokens/s"
    if min(first.n, other.n) < 2:
        return f"{lead}; from one trial, so its lead over {group.name(second)} may be noise."
    tied = [row for row in ranked[1:] if first.overlaps(row.values[THROUGHPUT])]
    if tied:
        names = listed([group.name(row) for row in tied], most=3)
        verb = "is" if len(tied) == 1 else "are"
        return f"{lead}; {names} {verb} within trial-to-trial variation, so the difference may be noise."
    if not other.value:
        return f"{lead}."
    return f"{lead}, {first.value / other.value:.2f}x {group.name(second)}."


def _lowest_memory(group: _Group) -> str:
    ranked = group.ranked(MEMORY, 1)
    if len(ranked) < 2:
        return ""
    least, most = ranked[0].values[MEMORY], ranked[-1].values[MEMORY]
    limit = least.high * (1 + _SAME_MEMORY)
    alike = [group.name(row) for row in ranked if row.values[MEMORY].low <= limit]
    peak = f"peak {bytes_text(least.value)} per rank"
    if len(alike) == len(ranked):
        return f"Lowest memory {group.where}: all cases are within 1% or their spread; {peak}."
    others = f" (tied with {listed(alike[1:], most=3)})" if len(alike) > 1 else ""
    fraction = f"{least.value / most.value:.0%} of {group.name(ranked[-1])}"
    return f"Lowest memory {group.where}: {alike[0]}{others}, {peak}, {fraction}."


def _notes(cases: Sequence[CaseSummary], measured: Sequence[CaseSummary]) -> list[str]:
    notes = _disturbed(measured)
    if any(offloads_in_vain(row.case, row.detail) for row in measured):
        notes.append(
            "On a CPU, offloaded data moves from memory to memory, so offloading saves no memory here."
        )
    if measured and all(row.trials < 2 for row in measured):
        notes.append("Only one trial per case, so the spread is unknown; set measure.trials to 3 or more.")
    if pending := sum(row.status == PENDING for row in cases):
        notes.append(f"{pending} of {len(cases)} cases have no record yet.")
    return notes


def _disturbed(measured: Sequence[CaseSummary]) -> list[str]:
    """Cases and trials on a noisy machine, with the first reason: they are much alike."""
    sentences = []
    if wholly := [row for row in measured if row.degraded]:
        names = listed([one_line(row.case.name) for row in wholly])
        sentences.append(
            f"Measured on a noisy machine (*); not compared: {names}; the first: "
            f"{one_line(wholly[0].degraded)}."
        )
    if partly := [row for row in measured if row.degraded_trials and not row.degraded]:
        left_out = ", ".join(
            f"{row.degraded_trials} of {row.trials} of {one_line(row.case.name)}" for row in partly[:6]
        )
        more = f" and {len(partly) - 6} more cases" if len(partly) > 6 else ""
        sentences.append(
            f"Noisy trials ignored, as other trials of these cases were clean: {left_out}{more}."
        )
    return sentences


def _unsupported(cases: Sequence[CaseSummary]) -> list[str]:
    rows = [row for row in cases if row.status == Status.UNSUPPORTED]
    return [
        f"Unsupported here: {listed([one_line(row.case.name) for row in same])}: {one_line(reason)}"
        for reason, same in grouped(rows, lambda row: row.reason).items()
    ]


def judged_bad(run: AnalysedRun) -> list[str]:
    """Bad verdicts in a sentence for each kind and word; they end a run with exit code 1."""
    pairs = [(row, verdict) for row in run.cases for verdict in row.of_gravity("bad")]
    return [
        f"{kind.capitalize()}: {word} in {len(same)} of {sum(kind in row.verdicts for row in run.cases)} "
        f"cases ({listed([one_line(row.case.name) for row, _ in same])})."
        for (kind, word), same in grouped(pairs, lambda pair: (pair[1].kind, pair[1].word)).items()
    ]


def judgements(run: AnalysedRun, kind: str) -> list[str]:
    """Verdicts of that *kind*: the good ones in a line for each word, all others in a line of their own."""
    rows = [row for row in run.cases if kind in row.verdicts]
    good = [row.verdicts[kind] for row in rows if row.verdicts[kind].gravity == "ok"]
    groups = grouped(good, lambda verdict: verdict.word).values()
    others = [row for row in rows if row.verdicts[kind].gravity != "ok"]
    return [*(_together(same, len(rows)) for same in groups), *(_alone(row, kind) for row in others)]


def _together(verdicts: Sequence[Verdict], judged: int) -> str:
    first, many = verdicts[0], f"{len(verdicts)} of {judged} case{'s' if judged > 1 else ''}"
    if len({verdict.sentence for verdict in verdicts}) == 1:
        return f"{one_line(first.sentence)}: {many}"
    extents = [verdict.extent for verdict in verdicts if verdict.extent]
    most = f", at most {max(extents)[0]:.2f} {extents[0][1]}" if extents else f"; first: {first.sentence}"
    return one_line(f"{first.word}: {many}{most}")


def _alone(row: CaseSummary, kind: str) -> str:
    verdict = row.verdicts[kind]
    ignored = "; not compared" if verdict.voids else ""
    return f"{one_line(row.case.name)}: {one_line(verdict.sentence)}{ignored}"

"""Key findings of a run, as sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from distbench.analysis import step_drift
from distbench.analysis.case_names import name_parts, shared_parts
from distbench.analysis.case_summary import (
    MEMORY,
    THROUGHPUT,
    CaseSummary,
    comparable_groups,
)
from distbench.analysis.choice import MEMORY_TOLERANCE, Candidate
from distbench.analysis.communication import UNEXPLAINED_TOLERANCE, compare_volume
from distbench.analysis.gradient_range import gradient_range_sentences
from distbench.analysis.inter_node import NodeEfficiency, node_efficiency
from distbench.analysis.job_results import INCONCLUSIVE, Verdict
from distbench.analysis.length_imbalance import length_imbalance
from distbench.analysis.losses.case_losses import DIFFERENT_BY_DESIGN, NOT_COMPARABLE
from distbench.analysis.ranks import STRAGGLER_RATIO
from distbench.analysis.run import RunAnalysis
from distbench.analysis.scaling import ScalingSeries
from distbench.analysis.script_findings import script_findings
from distbench.analysis.step_limits import LENGTH_ADVICE, StepLimit
from distbench.analysis.verdicts import LOSS_VERDICT
from distbench.analysis.wording.conditions import condition_sentences
from distbench.analysis.wording.memory_needs import memory_need_sentences
from distbench.core.grouping import group_by
from distbench.core.text import join_limited, one_line
from distbench.core.units import format_count, format_number, format_ratio_interval
from distbench.record import NOT_LAUNCHED_TEXT, Status

_MAX_FAILURES = 20
_MAX_SERIES = 4
_MAX_SENTENCE_LENGTH = 600
"""Maximum length in characters of the reason why cases failed or did not run; a run prints it once."""
# maximum length of a sentence that a run prints once
_MAX_REMARK_LENGTH = 1000
FAILURE_ADVICE: dict[str, str] = {
    Status.UNSUPPORTED: "Not a failure: the reason says what this machine is missing.",
    Status.OOM_GPU: "The device ran out of memory. Try a smaller micro-batch with more accumulation, "
    "activation checkpointing, or a strategy that shards more (zero3, fsdp) or offloads to the host.",
    Status.OOM_HOST: "The host ran out of memory. Try fewer ranks per host, less offload to the CPU (or "
    "offload to NVMe), and fewer data loader workers.",
    Status.CRASHED: "Read the traceback of the named rank: it failed first, the others followed. "
    "Run this case alone (--only), or --resume RUN --retry-failed, to see whether it fails again.",
    Status.HANG: "One rank stopped making progress. Compare what each rank did last: the rank that is "
    "behind is the cause, and the others wait for it. Raise limits.step if steps are known to take "
    "that long.",
    Status.INIT_TIMEOUT: "The ranks did not connect, or the engine was not ready in time. Check that "
    "every host can reach the others' addresses and ports; raise limits.start if joining is known to "
    "take that long, or limits.build if building the model is.",
    Status.INVALID_NAN: "The loss was no longer finite. Try a lower learning rate, gradient clipping, "
    "or bf16 instead of fp16; if single trains well with the same settings, suspect the strategy.",
    Status.MISMATCH: "The engine did not use the settings of the suite, so its numbers would belong to a "
    "different case. The reason names the setting: change it in the suite, or find out what overrides "
    "it.",
    Status.PREPARE_FAILED: "Nothing was launched: C++ ops or initial weights could not be built. Check for a "
    "compiler and ninja, for free disk space, and the end of the log.",
    Status.CANCELLED: "The trial was stopped from outside. Complete the run with --resume RUN.",
}
"""Status -> one or two sentences of advice, for every status but ``measured``."""


def all_findings(run: RunAnalysis) -> list[str]:
    """Key findings of *run*: the fastest, the lowest memory, caveats, verdicts, failures."""
    judged = [
        f"{kind.capitalize()}: {line}." for kind in run.verdict_kinds for line in verdict_sentences(run, kind)
    ]
    return [*key_findings(run), *judged, *failure_sentences(run)]


def key_findings(run: RunAnalysis) -> list[str]:
    """The fastest case and the one with the lowest memory at each world size, and caveats."""
    groups = comparable_groups(run.cases, noisy=True)
    best = []
    for rows in (group for group in groups if len(group) > 1):
        where, names = _group_name(rows, groups), run.short_names(rows)
        quiet = [row for row in rows if row.comparable]
        best += [_fastest(run, quiet, where, names), _lowest_memory(run, rows, where, names)]
    best.append(node_efficiency_sentence(run.scaling))
    found = [*filter(None, best), *_step_limits(run), *_anomalies(run), *condition_sentences(run)]
    if not run.info.is_script:
        return found
    return [*_in_scripts(run), *map(_with_options, found)]


def _with_options(sentence: str) -> str:
    """*sentence* with the options of ``distbench measure`` in place of the keys of a suite."""
    for key, option in (("measure.warmup", "--warmup"), ("measure.steps", "--steps")):
        sentence = sentence.replace(key, option)
    return sentence


def _in_scripts(run: RunAnalysis) -> list[str]:
    """Findings in scripts, each once for all launches of a script."""
    found = [finding.text for record in run.records for finding in script_findings(record)]
    return [*dict.fromkeys(found)]


def _step_limits(run: RunAnalysis) -> Iterator[str]:
    """Limits of the steps of the cases: a sentence for each diagnosis, without those of noise."""
    known = [(row, found) for row, found in run.step_limits if isinstance(found, StepLimit)]
    names = run.short_names([row for row, _ in known])
    for word, same in group_by(known, lambda pair: pair[1].word).items():
        shares = [found.share for _, found in same if found.share is not None]
        if not shares:
            continue
        least, most = f"{min(shares):.0%}", f"{max(shares):.0%}"
        extent = least if least == most else f"{least} to {most}"
        cases = join_limited([names[row.case.id] for row, _ in same])
        yield (
            f"{word.capitalize()}: {cases}: {extent} of the step is {same[0][1].noun} "
            "(what to try: distbench show --view diagnosis)."
        )


def failure_sentences(run: RunAnalysis) -> list[str]:
    """Cases that failed, wholly or in part, and cases that can't run here, with the reason."""
    sentences = _model_errors(run)
    no_failures = (Status.UNSUPPORTED, Status.CANCELLED)
    bad = [row for row in run.cases if row.failed and row.failure_status not in no_failures]
    others = [row for row in bad if row.measured or not (row.failure and row.failure.user_error)]
    alike = group_by(others, lambda row: (_failure_title(row), row.reason))
    sentences += [
        f"{before}: {join_limited([one_line(row.case.name) for row in rows])}{after}: "
        f"{one_line(reason, _MAX_SENTENCE_LENGTH)}"
        for ((before, after), reason), rows in [*alike.items()][:_MAX_FAILURES]
    ]
    if more := sum(len(rows) for rows in [*alike.values()][_MAX_FAILURES:]):
        sentences.append(f"{more} more cases failed; the report lists them all.")
    without_memory = [row.case for row in bad if row.failure_status == Status.OOM_GPU]
    sentences += memory_need_sentences(without_memory[:_MAX_FAILURES])
    if stopped := [one_line(row.case.name) for row in run.cases if row.failure_status == Status.CANCELLED]:
        sentences.append(f"Stopped before the end of a trial: {join_limited(stopped)}.")
    unsupported = [row for row in run.cases if row.status == Status.UNSUPPORTED]
    return sentences + [
        _unlaunched(
            one_line(reason, _MAX_SENTENCE_LENGTH), join_limited([one_line(row.case.name) for row in same])
        )
        for reason, same in group_by(unsupported, lambda row: row.reason).items()
    ]


def _model_errors(run: RunAnalysis) -> list[str]:
    """Errors of the user's model, each once, with all trials that ended in it."""
    partly = {row.case.id for row in run.cases if row.measured}
    failed = [
        record
        for record in run.records
        if record.failure and record.failure.user_error and record.case_id not in partly
    ]
    return [
        f"Failed: {join_limited([*dict.fromkeys(one_line(record.case.name) for record in same)])}: {status}: "
        f"{one_line(error)}"
        for (status, error), same in group_by(
            failed, lambda record: (record.status, record.failure.user_error if record.failure else "")
        ).items()
    ]


def _unlaunched(reason: str, names: str) -> str:
    if not reason.startswith(NOT_LAUNCHED_TEXT):
        return f"Unsupported here: {names}: {reason}"
    why = reason.removeprefix(f"{NOT_LAUNCHED_TEXT}: ").replace("this one", "these")
    return (
        f"Not launched: {names}: {why}. Fix the model, then resume with: distbench run --resume RUN "
        "--retry-failed"
    )


def _failure_title(row: CaseSummary) -> tuple[str, str]:
    """Text before and after the name: ``Failed``, ``: crashed, rank 1 in time``."""
    failure = row.failure
    if row.measured:
        return "Partly failed", ""
    # most reasons begin with the rank
    is_new = failure and failure.rank is not None and not row.reason.startswith("rank ")
    where = f", rank {failure.rank} in {failure.phase}" if failure and is_new else ""
    return "Failed", f": {row.status}{where}"


def _group_name(rows: list[CaseSummary], groups: list[list[CaseSummary]]) -> str:
    size = rows[0].case.world_size
    where = f"on {format_count(size, 'device')}"
    others = [row for group in groups for row in group if row.case.world_size == size]
    if len(others) == len(rows):
        return where
    shared = shared_parts([row.case for row in rows])
    distinct = [part for part in shared if any(part not in name_parts(row.case) for row in others)]
    return f"{where} with {', '.join(distinct)}" if distinct else where


def _fastest(run: RunAnalysis, rows: Sequence[CaseSummary], where: str, names: Mapping[str, str]) -> str:
    by_pace = sorted(
        _candidates_with(run, rows, THROUGHPUT), key=lambda one: -one.speed.value if one.speed else 0.0
    )
    if len(by_pace) < 2:
        return ""
    best, second = by_pace[:2]
    assert best.speed and second.speed
    lead = f"Fastest {where}: {names[best.id]}, {best.speed.text()} tokens/s"
    if best.barred.startswith(DIFFERENT_BY_DESIGN):
        lead += ", which trains differently by design"
    if once := [names[one.id] for one in (best, second) if one.speed and one.speed.trials < 2]:
        who = f"{once[0]} has" if len(once) == 1 else "both have"
        return f"{lead}; its lead over {names[second.id]} may be noise, because {who} only one valid trial."
    if tied := [names[one.id] for one in by_pace[1:] if one.speed and not one.speed.differs_from(best.speed)]:
        verb = "is" if len(tied) == 1 else "are"
        return (
            f"{lead}; {join_limited(tied, limit=3)} {verb} within trial-to-trial variation, so the "
            "difference may be noise."
        )
    ratio = best.speed.ratio(second.speed)
    return f"{lead}, {format_ratio_interval(ratio.value, ratio.low, ratio.high)[0]}x {names[second.id]}."


def _lowest_memory(
    run: RunAnalysis, rows: Sequence[CaseSummary], where: str, names: Mapping[str, str]
) -> str:
    by_memory = sorted(_candidates_with(run, rows, MEMORY), key=lambda one: one.memory or 0.0)
    if len(by_memory) < 2:
        return ""
    least, most = by_memory[0], by_memory[-1]
    alike = [names[one.id] for one in by_memory if one.needs_same_memory_as(least)]
    if len(alike) == len(by_memory):
        return f"Lowest memory {where}: all cases are within {MEMORY_TOLERANCE:.0%}; {least.memory_text}."
    others = f" (tied with {join_limited(alike[1:], limit=3)})" if len(alike) > 1 else ""
    part = (least.memory or 0.0) / (most.memory or 1.0)
    return f"Lowest memory {where}: {alike[0]}{others}, {least.memory_text}, {part:.0%} of {names[most.id]}."


def node_efficiency_sentence(scaling: Sequence[ScalingSeries]) -> str:
    """Sentence with the split efficiency of each series at its largest size.

    Empty if no series goes beyond a node of several devices.
    """
    found = []
    for series in sorted(scaling, key=lambda each: -each.points[-1].throughput.value):
        at = node_efficiency(series, series.points[-1])
        # with one device per node it would repeat the efficiency
        if isinstance(at, NodeEfficiency) and at.devices_per_node > 1:
            found.append(
                f"{series.name} {at.within_node:.2f} on one node "
                f"({format_count(at.devices_per_node, 'device')}), {at.across_nodes:.2f} across "
                f"{at.nodes} nodes"
            )
    more = f"; {len(found) - _MAX_SERIES} more are in the table" if len(found) > _MAX_SERIES else ""
    shown = "; ".join(found[:_MAX_SERIES])
    return f"Efficiency within and across nodes: {shown}{more}." if found else ""


def _candidates_with(run: RunAnalysis, rows: Sequence[CaseSummary], column: str) -> list[Candidate]:
    """Candidates of *rows* that have a number of *column*; ties are decided as in a choice."""
    known = {row.case.id for row in rows if row.positive_trials(column)}
    return [one for one in run.candidates if one.id in known]


def _anomalies(run: RunAnalysis) -> list[str]:
    """Anomalies of the measured cases of *run*."""
    measured = [row for row in run.cases if row.representative_trial is not None]
    names = run.short_names(measured)
    moved = [
        (row, found)
        for row in measured
        if row.representative_trial and (found := compare_volume(row.representative_trial))
    ]
    affected = {
        "steps were still speeding up during timing; increase measure.warmup": [
            row for row in measured if step_drift.still_speeds_up(row)
        ],
        "gradients are all-reduced instead of reduce-scattered: the same traffic as plain data parallelism, "
        "plus an all-gather": [row for row, found in moved if found.all_reduces_gradients],
        "the bytes moved differ from theory; see distbench show --view communication": [
            row for row, found in moved if found.unexplained_share > UNEXPLAINED_TOLERANCE
        ],
    }
    sentences = [
        f"{join_limited([names[row.case.id] for row in rows])}: {text}."
        for text, rows in affected.items()
        if rows
    ]
    sentences += step_drift.drift_sentences(measured, names)
    sentences += gradient_range_sentences(measured, names)
    sentences += _inter_node_bottlenecks(run, measured, names)
    sentences += [each.sentence for each in run.stragglers]
    # a finding on ranks over all trials replaces one on a single trial
    uneven = [] if run.stragglers else measured
    return sentences + [sentence for row in uneven if (sentence := _imbalance(row, names[row.case.id]))]


def _inter_node_bottlenecks(
    run: RunAnalysis, measured: Sequence[CaseSummary], names: Mapping[str, str]
) -> list[str]:
    """Cases limited by the inter-node link, the worst with its numbers."""
    sentences = []
    bottlenecks = [
        (row.case.id, run.inter_node_bottlenecks[row.case.id])
        for row in measured
        if row.case.id in run.inter_node_bottlenecks
    ]
    for same in group_by(bottlenecks, lambda pair: pair[1].cause).values():
        worst, most = max(same, key=lambda pair: pair[1].exposed_share)
        others = [names[case_id] for case_id, _ in same if case_id != worst]
        more = f"; so {'is' if len(others) == 1 else 'are'} {join_limited(others)}" if others else ""
        sentences.append(f"{names[worst]} is {most.sentence}{more}.")
    return sentences


def _imbalance(row: CaseSummary, name: str) -> str:
    imbalance = row.values.get("imbalance")
    if imbalance is None or imbalance.value < STRAGGLER_RATIO:
        return ""
    if by_length := length_imbalance(row.representative_trial):
        return (
            f"{name}: ranks are uneven because their rows differ in length: the slowest rank works "
            f"{imbalance.value:.2f}x as long as the median rank, and the tokens of ranks explain "
            f"{by_length.explained:.0%} of the variance of their work; {LENGTH_ADVICE}."
        )
    return (
        f"{name}: ranks are uneven: the slowest rank works {imbalance.value:.2f}x as long as the "
        "median rank; no rank is slowest significantly more often than the others, or there are "
        "too few trials (distbench show --view ranks)."
    )


def bad_verdict_sentences(run: RunAnalysis) -> list[str]:
    """Bad verdicts, one sentence for each kind and word; they end a run with exit code 1.

    A case that differs by design and converges worse is a result: the question was whether it would.
    """
    pairs = [
        (row, verdict)
        for row in run.cases
        for verdict in row.verdicts_of("bad")
        if not (verdict.confirms_by_outcome and row.unproven_design)
    ]
    return [
        f"{kind.capitalize()}: {word} in {len(same)} of {sum(kind in row.verdicts for row in run.cases)} "
        f"cases ({join_limited([one_line(row.case.name) for row, _ in same])})."
        for (kind, word), same in group_by(pairs, lambda pair: (pair[1].kind, pair[1].word)).items()
    ]


def verdict_sentences(run: RunAnalysis, kind: str) -> list[str]:
    """Verdicts of *kind*: a line for each word; bad and similar ones get a line for each case.

    Each of their remarks follows once.
    """
    judged = [(row, row.verdicts[kind]) for row in run.cases if kind in row.verdicts]
    alike = [verdict for _, verdict in judged if _is_groupable(verdict)]
    # a line about several cases must be true of each of them
    groups = group_by(alike, lambda verdict: (verdict.word, verdict.extent and verdict.extent[1])).values()
    return [
        *(_group_sentence(same, len(judged)) for same in groups),
        *_grouped_by_sentence([(row, verdict) for row, verdict in judged if not _is_groupable(verdict)]),
        *(one_line(remark, _MAX_REMARK_LENGTH) for remark in dict.fromkeys(_remarks(judged))),
    ]


def _is_groupable(verdict: Verdict) -> bool:
    """True if one line can cover several cases: good ones, and models that draw random numbers."""
    return verdict.gravity == "ok" or verdict.word == NOT_COMPARABLE


def _remarks(judged: Sequence[tuple[CaseSummary, Verdict]]) -> Iterator[str]:
    for _, verdict in judged:
        yield from verdict.remarks


def _group_sentence(verdicts: Sequence[Verdict], judged: int) -> str:
    first, many = verdicts[0], f"{len(verdicts)} of {format_count(judged, 'case')}"
    if len({verdict.sentence for verdict in verdicts}) == 1:
        return f"{one_line(first.sentence)}: {many}"
    extents = [verdict.extent for verdict in verdicts if verdict.extent]
    most = f", at most {_extent_text(*max(extents))}" if extents else f"; first: {first.sentence}"
    return one_line(f"{first.word}: {many}{most}")


def _extent_text(size: float, of_what: str) -> str:
    """``0.35 of the allowed deviation``, or far beyond it ``66,923 times`` it."""
    return (
        f"{size:.2f} {of_what}" if size < 10 else f"{format_number(size)} times {of_what.removeprefix('of ')}"
    )


def _grouped_by_sentence(judged: Sequence[tuple[CaseSummary, Verdict]]) -> Iterator[str]:
    for same in group_by(judged, lambda pair: (pair[1].sentence, pair[1].invalidates)).values():
        names = join_limited([one_line(row.case.name) for row, _ in same])
        verdict = same[0][1]
        excluded = "; not compared" if verdict.invalidates else ""
        yield f"{names}: {one_line(verdict.sentence, _MAX_SENTENCE_LENGTH)}{excluded}"


def unmeasured_sentences(run: RunAnalysis) -> list[str]:
    """A sentence if no case can run here; empty otherwise."""
    if not run.cases or any(row.status != Status.UNSUPPORTED for row in run.cases):
        return []
    return ["No case could be measured: all are unsupported here."]


def missing_verdict_sentences(run: RunAnalysis) -> list[str]:
    """Sentence for each requested kind that judged no case, with the most frequent reason.

    An inconclusive judgement counts as judged. The timed losses are judged without a request.
    """
    sentences = []
    for kind in (kind for kind in run.verdict_kinds if kind != LOSS_VERDICT):
        verdicts = [row.verdicts[kind] for row in run.cases if kind in row.verdicts]
        if any(verdict.gravity != "unknown" or verdict.word == INCONCLUSIVE for verdict in verdicts):
            continue
        ((reason, count),) = Counter(one_line(verdict.sentence) for verdict in verdicts).most_common(1)
        of = "" if count == len(verdicts) else f" ({count} of them)"
        cases = format_count(len(verdicts), "case")
        sentences.append(f"{kind.capitalize()}: no verdict for any of {cases}: {reason}{of}.")
    return sentences

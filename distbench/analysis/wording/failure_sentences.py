"""State which cases failed or can't run here, why, and what to do about it."""

from __future__ import annotations

from distbench.analysis.case_summary import CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.analysis.wording.memory_needs import memory_need_sentences
from distbench.core.grouping import group_by
from distbench.core.text import join_limited, one_line
from distbench.record import NOT_LAUNCHED_TEXT, Status

_MAX_FAILURES = 20
_MAX_SENTENCE_LENGTH = 600
"""Maximum length in characters of the reason why cases failed or did not run; a run prints it once."""
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

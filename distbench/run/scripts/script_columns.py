"""Columns and tables that only the trial of a script has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distbench.core.columns import TableColumn, TableSpec, columns_of
from distbench.ipc.script_files import ScriptReport
from distbench.metrics.base import Metric

_PARTS = {
    "data": "Waiting for the loader's next batch, on the host.",
    "forward": "Calls of the outermost models.",
    "backward": "Backward passes, with the communication that they wait for.",
    "optimizer": "Updates of the optimizers.",
}
_MAX_NAMES = 20

RANKS_TABLE = TableSpec(
    "script_ranks",
    "The rank of a measured script, as it describes itself.",
    (
        TableColumn("host", "varchar", "Host that it ran on."),
        TableColumn("command", "varchar", "Command line of its process."),
        TableColumn("timed_steps", "bigint", "Timed steps that it ended."),
        TableColumn("ended", "varchar", "End of its measurement: complete, or its cause."),
        TableColumn("samples_per_step", "double", "Samples that it trains on in a step; null: unknown."),
        TableColumn("backward_passes", "double", "Backward passes in a step; null: unknown."),
        TableColumn("rows", "varchar", "Hashes of the rows of its first batches."),
        TableColumn("shares_rows", "bigint", "1 if it trains on the rows of others by design."),
        TableColumn("parameter_digest", "varchar", "Digest of its replica; null: it has no whole one."),
        TableColumn("gradient_bytes", "bigint", "Bytes of gradients that DDP reduces; null: no DDP.", "B"),
        TableColumn("unused_parameters", "varchar", "Trained parameters without a gradient."),
        TableColumn("unused_count", "bigint", "Number of these parameters."),
    ),
)
READS_TABLE = TableSpec(
    "script_value_reads",
    "Lines of the script that read a value of a tensor in the counted step; on a GPU the host waits there.",
    (
        TableColumn("place", "varchar", "File and line."),
        TableColumn("calls", "bigint", "Reads in the step."),
    ),
)


@dataclass(frozen=True)
class ScriptSteps(Metric):
    """Parts of the timed steps of a script, what its process holds, and what its ranks tell."""

    passes = frozenset()
    columns = (
        *columns_of("s", "lower", "mean", per_step=True)(
            **{
                f"script_{part}_s": f"{doc} Without a profiler: host time on a CPU, events on a GPU."
                for part, doc in _PARTS.items()
            }
        ),
        *columns_of("B", "lower", "max", per_step=True)(
            script_held_bytes="Bytes that the process holds at the end of a step: of tensors on a GPU, of "
            "resident memory on a CPU.",
        ),
    )
    tables = (RANKS_TABLE, READS_TABLE)


def rank_tables(report: ScriptReport, timed_steps: int) -> dict[str, list[dict[str, Any]]]:
    """Tables of a rank that ended *timed_steps* timed steps, from its *report*."""
    names: Sequence[str] = report.unused_parameters
    row = {
        "host": report.host,
        "command": " ".join(report.argv),
        "timed_steps": timed_steps,
        "ended": report.ended or "killed",
        "samples_per_step": report.samples_per_step,
        "backward_passes": report.backward_passes,
        "rows": " ".join(each for batch in report.rows for each in batch),
        "shares_rows": int(report.shares_rows),
        "parameter_digest": report.parameter_digest or None,
        "gradient_bytes": report.gradient_bytes,
        "unused_parameters": " ".join(names[:_MAX_NAMES]),
        "unused_count": len(names),
    }
    reads = {READS_TABLE.name: [*report.value_reads]} if report.value_reads else {}
    return {RANKS_TABLE.name: [row], **reads}

"""Definitions of the tables of ``distbench query``, the only documentation of their columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distbench.core import registry
from distbench.core.columns import TableSpec
from distbench.core.job import job_kinds
from distbench.views.base import all_views


@dataclass(frozen=True)
class SqlColumn:
    """One column of a table."""

    name: str
    type: str
    """SQL type."""
    doc: str
    unit: str = ""


@dataclass(frozen=True)
class SqlTable:
    """One table. It exists with at least these columns, even if no run has a row for it."""

    name: str
    doc: str
    columns: tuple[SqlColumn, ...]


_RUN_ID = SqlColumn("run_id", "varchar", "Id of the run: eight hex digits.")
CASE_COLUMNS = (
    _RUN_ID,
    SqlColumn(
        "case_id",
        "varchar",
        "Id of the case: a hash of everything that defines the work, the same in every run.",
    ),
    SqlColumn("case_name", "varchar", "Name of the case, as in reports."),
    SqlColumn("strategy", "varchar", "Short name of the strategy with its options, such as zero3+offload."),
    SqlColumn("world_size", "bigint", "Devices."),
)
"""Columns that identify the case of a row."""
TRIAL_COLUMNS = (*CASE_COLUMNS, SqlColumn("round", "bigint", "Which trial of the case, from 0 on."))
"""Columns that identify the trial of a row."""
_RANK = SqlColumn("rank", "bigint", "Rank, from 0 on.")

RUNS = SqlTable(
    "runs",
    "One row per run.",
    (
        _RUN_ID,
        SqlColumn("suite", "varchar", "Name of the suite."),
        SqlColumn("created", "timestamp", "When it was started, UTC."),
        SqlColumn("state", "varchar", "running, finished or interrupted."),
        SqlColumn("version", "varchar", "Version of distbench."),
        SqlColumn("cases", "bigint", "Cases of its suite."),
        SqlColumn("trials", "bigint", "Trials with a record."),
        SqlColumn("measured", "bigint", "Trials that were measured."),
        SqlColumn("damaged", "bigint", "Unreadable trials of any kind, which are in no other table."),
        SqlColumn("cpu", "varchar", "Processor."),
        SqlColumn("cpu_cores", "bigint", "Cores available to this run."),
        SqlColumn("memory_bytes", "bigint", "Memory of the machine.", "B"),
        SqlColumn("gpus", "bigint", "GPUs of the machine."),
        SqlColumn("gpu", "varchar", "Model of its first GPU."),
        SqlColumn("machine", "json", "All facts of the machine: versions, drivers, variables."),
        SqlColumn("folder", "varchar", "Its folder."),
    ),
)
CASES = SqlTable(
    "cases",
    "One row per case of a run, measured or not.",
    (
        *CASE_COLUMNS,
        SqlColumn("status", "varchar", "measured, pending, damaged, unmeasured, or how a trial ended."),
        SqlColumn("reason", "varchar", "Reason why it was not measured, or not in every trial; else empty."),
        SqlColumn("trials", "bigint", "Trials that were measured."),
        SqlColumn("failed", "bigint", "Trials that were not."),
        SqlColumn("strategy_name", "varchar", "The strategy's plug-in."),
        SqlColumn("strategy_options", "json", "All options of the strategy."),
        SqlColumn("workload", "varchar", "The workload's plug-in."),
        SqlColumn("workload_options", "json", "All options of the workload."),
        SqlColumn("data", "varchar", "The data source's plug-in."),
        SqlColumn("device", "varchar", "cpu or cuda."),
        SqlColumn("global_batch_size", "bigint", "Samples of an optimizer step, over all ranks.", "samples"),
        SqlColumn("micro_batch_size", "bigint", "Samples of one forward pass of a rank.", "samples"),
        SqlColumn("gradient_accumulation_steps", "bigint", "Micro-batches of a rank in an optimizer step."),
        SqlColumn("precision", "varchar", "Dtype of the forward and backward pass."),
        SqlColumn("reduce_dtype", "varchar", "Dtype in which gradients are reduced."),
        SqlColumn("master_dtype", "varchar", "Dtype of the weights that the optimizer updates."),
        SqlColumn("optimizer_state_dtype", "varchar", "Dtype of the optimizer's moments."),
        SqlColumn("optimizer", "varchar", "Optimizer."),
        SqlColumn("lr", "double", "Learning rate."),
        SqlColumn("optimizer_options", "json", "All hyper-parameters of the optimizer."),
        SqlColumn("activation_checkpointing", "varchar", "none, selective or full."),
        SqlColumn("compile", "varchar", "none, or the mode of torch.compile."),
        SqlColumn("threads", "bigint", "Intra-op threads of a rank."),
        SqlColumn("seed", "bigint", "Seed of weights and data."),
        SqlColumn("initial_weights", "varchar", "drawn or exact."),
        SqlColumn("loader_workers", "bigint", "Worker processes of a rank's loader; null: no loader."),
        SqlColumn("environment", "varchar", "current, or the suite's name of another Python environment."),
        SqlColumn("env", "json", "Environment variables that the suite gives to the ranks."),
        SqlColumn("engine", "varchar", "Framework that takes the steps; native: none."),
    ),
)
_OUTCOME = (
    SqlColumn("status", "varchar", "measured, or how it ended."),
    SqlColumn("reason", "varchar", "Reason why it was not measured; else empty."),
)
_TIMING = (
    SqlColumn("started", "timestamp", "When it was launched, UTC."),
    SqlColumn("wall_s", "double", "From the launch to the end of the last process.", "s"),
    SqlColumn("launches", "bigint", "1; larger if the trial was retried after a failure."),
)
_REPORTED = (
    SqlColumn("absent", "json", "Reasons for missing numbers, by column."),
    SqlColumn("effective", "json", "Settings read back from the live engine of rank 0."),
    SqlColumn("environment", "json", "Facts of the worker: versions, device, threads."),
)
TRIAL_FACTS = (
    *TRIAL_COLUMNS,
    *_OUTCOME,
    SqlColumn("degraded", "varchar", "Reason why it is not compared (a noisy machine); else empty."),
    *_TIMING,
    SqlColumn("nodes", "bigint", "Nodes of its ranks; null: the machine of the command, or none."),
    SqlColumn("failed_rank", "bigint", "The rank that failed first."),
    SqlColumn("failed_phase", "varchar", "Phase of that rank."),
    *_REPORTED,
)
"""Columns of ``trials`` that are not values of metrics."""
TRIALS = SqlTable(
    "trials",
    "One row per trial (one launch of all ranks), the unit of statistics, with all of its numbers.",
    (
        *TRIAL_FACTS,
        SqlColumn("step_s", "double", "Mean step time of the slowest rank.", "s"),
        SqlColumn("tokens_per_s", "double", "Throughput of all ranks.", "tokens/s"),
        SqlColumn("memory_peak", "double", "Peak bytes of tensors, maximum over ranks.", "B"),
        SqlColumn("comm_bytes", "double", "Payload of a rank's collectives in a step.", "B"),
        SqlColumn("final_loss", "double", "Loss of the last timed step."),
    ),
)
STEPS = SqlTable(
    "steps",
    "One row per rank and step of the time pass, with all numbers of that step. A step lasts as long "
    "as its slowest rank: max(step_s) over ranks.",
    (
        *TRIAL_COLUMNS,
        _RANK,
        SqlColumn("step", "bigint", "Step of the timed window, from 0 on; warm-up steps are not in it."),
        SqlColumn("step_s", "double", "Wall time of the step on this rank.", "s"),
        SqlColumn("loss", "double", "Training loss on this rank's share of the batch, before the update."),
    ),
)
SAMPLES = SqlTable(
    "samples",
    "All raw samples of all columns and passes, one row each.",
    (
        *TRIAL_COLUMNS,
        SqlColumn("name", "varchar", "Column of the record, such as step_s."),
        _RANK,
        SqlColumn(
            "step", "bigint", "Step of the sample in its pass; 0 for columns with one sample per trial."
        ),
        SqlColumn("value", "double", "The sample; null if unknown."),
        SqlColumn("pass", "varchar", "warmup, time, count, profile or check; null if not recorded."),
        SqlColumn("unit", "varchar", "Its unit; empty for a pure number."),
    ),
)


RANK_PLACEMENT = (
    _RANK,
    SqlColumn("node", "varchar", "Node of the rank; null: the machine of the command."),
    SqlColumn("device", "varchar", "cpu or cuda; null if it exited before it reported."),
    SqlColumn("gpu", "bigint", "Number of its GPU on the node, as nvidia-smi counts."),
    SqlColumn("gpu_uuid", "varchar", "UUID of the GPU, as in nvidia-smi -L."),
)
RANKS = SqlTable(
    "ranks",
    "One row per rank and trial: its node and device, and the time of its work.",
    (
        *TRIAL_COLUMNS,
        *RANK_PLACEMENT,
        SqlColumn("step_s", "double", "Mean of its timed steps, waiting for others included.", "s"),
        SqlColumn("work_s", "double", "Mean of its own work in the profiled steps.", "s"),
        SqlColumn("is_slowest", "boolean", "True if no rank of the trial has more work; null if unknown."),
    ),
)


def metric_table(spec: TableSpec) -> SqlTable:
    """Table that a metric writes."""
    columns = (SqlColumn(column.name, column.type, column.doc, column.unit) for column in spec.columns)
    return SqlTable(spec.name, spec.doc, (*TRIAL_COLUMNS, *((_RANK,) if spec.by_rank else ()), *columns))


JOBS = SqlTable(
    "jobs",
    "One row per trial of other jobs (checks, checkpoints, trainings), with its numbers. Its tables "
    "have the names in its record.",
    (
        *TRIAL_COLUMNS,
        SqlColumn("kind", "varchar", "Kind of job."),
        *_OUTCOME,
        *_TIMING,
        SqlColumn("options", "json", "Options of the job for its ranks."),
        *_REPORTED,
    ),
)
VIEW_PREFIX = "view_"
"""Prefix of the names of the views' tables; the rest is the word of ``show --view``."""


def view_tables() -> Iterator[SqlTable]:
    """Tables of the views, with the columns of their tables."""
    for name, view in all_views().items():
        columns = (SqlColumn(field.name, field.type, field.doc, field.unit) for field in view.fields)
        yield SqlTable(f"{VIEW_PREFIX}{name}", f"The view {name}: {view.title}.", (_RUN_ID, *columns))


_METRIC_TABLES = [
    metric_table(spec) for metric in registry.built_in_plugins("metrics").values() for spec in metric.tables
]
TABLES = {table.name: table for table in (RUNS, CASES, TRIALS, RANKS, STEPS, SAMPLES, JOBS, *_METRIC_TABLES)}
"""Documented tables by name. Metrics of plug-ins write others, which their records describe."""
JOB_TABLES = {spec.name: metric_table(spec) for kind in job_kinds() for spec in kind.tables}
"""Tables of kinds of job, which older records do not describe."""

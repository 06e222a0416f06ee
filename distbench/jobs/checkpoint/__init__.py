"""``checkpoint``: whether each case resumes from its checkpoints as the same training."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from distbench import optimizers
from distbench.core import registry
from distbench.core.bounds import Bound
from distbench.core.case import TUNABLE_FIELDS, Case
from distbench.core.columns import Column, TableColumn, TableSpec
from distbench.core.grouping import group_by
from distbench.core.job import JobKind, JobOptions, JobSpec, PlannedTrial
from distbench.core.machine import Machine
from distbench.core.measurement import MeasureConfig
from distbench.jobs._recorded_trainings import TRAINING, training_tables
from distbench.strategies.base import REFERENCE_STRATEGY

# before its first step an optimizer has no state that could be lost
_StepCount = Annotated[int, Bound(1, 10_000)]

FROM_SHARDS, FROM_FULL_STATE = "directly", "whole state"
"""Ways from one case to another, as named in the table ``checkpoint_parts``."""
_ON_DISK_DOC = "until every file is on the disk (fsync) and every rank has ended"
_FULL_STATE_DOC = "parameters, buffers and optimizer state by name in one safetensors file"


def _seconds(name: str, doc: str) -> Column:
    return Column(name, "s", "lower", "max", f"{doc}. From a barrier on, by the slowest rank.")


@dataclass(frozen=True)
class CheckpointSection:
    """Check that each case resumes correctly, from its checkpoints and those of other cases."""

    steps_before: _StepCount = 3
    """Steps that each case trains before it saves."""
    steps_after: _StepCount = 3
    """Further steps, repeated from each checkpoint that it loads."""


@dataclass(frozen=True)
class CheckpointOptions(CheckpointSection, JobOptions):
    """Options for the ranks of a checkpoint trial."""

    source: str = ""
    """Name of another case from whose state the case also resumes; empty: none."""
    source_id: str = ""
    directly: bool = False
    """True if the case and the other one load each other's shards directly, so no process gathers the full
    state. Otherwise, and if the shards are not available, they load the full state."""


@dataclass(frozen=True)
class CheckpointJob(JobKind):
    """Check that each case resumes correctly, from its checkpoints and those of other cases."""

    name: ClassVar[str] = "checkpoint"
    folder: ClassVar[str] = "checkpoints"
    section: ClassVar[type] = CheckpointSection
    options: ClassVar[type[JobOptions]] = CheckpointOptions
    columns: ClassVar[tuple[Column, ...]] = (
        _seconds("checkpoint_save_s", f"Saving in shards, in the framework's own format, {_ON_DISK_DOC}"),
        _seconds("checkpoint_load_s", "Loading these shards into a new engine (from the page cache)"),
        Column("checkpoint_bytes", "B", "lower", "first", "Total size of the shards of all ranks."),
        _seconds(
            "full_save_s",
            f"Gathering the full state on rank 0 and writing it: {_FULL_STATE_DOC}, {_ON_DISK_DOC}",
        ),
        _seconds("full_load_s", "Reading that file on every rank and distributing it in a new engine"),
        Column(
            "full_bytes", "B", "lower", "first", f"Size of the file with the full state: {_FULL_STATE_DOC}."
        ),
    )
    tables: ClassVar[tuple[TableSpec, ...]] = (
        *training_tables("checkpoint"),
        TableSpec(
            "checkpoint_parts",
            "One row per state that the trial resumed from.",
            (
                TRAINING,
                TableColumn("source", "varchar", "Name of the case that saved the state."),
                TableColumn("source_id", "varchar", "Id of that case."),
                TableColumn(
                    "way",
                    "varchar",
                    f"From another case: {FROM_SHARDS} (loading its shards without gathering), or its "
                    f"{FROM_FULL_STATE}.",
                ),
                TableColumn(
                    "lacking", "varchar", "Reason why the state could not be resumed from; empty: it was."
                ),
                TableColumn(
                    "unseen", "varchar", "Reason why the loaded optimizer state can't be read, or empty."
                ),
            ),
        ),
    )
    is_deterministic: ClassVar[bool] = True
    needs_shared_files: ClassVar[bool] = True
    # most of the time such a trial builds engines, and writes and reads their state
    step_limit_key: ClassVar[str] = "build"
    order: ClassVar[int] = 20

    def planned_trials(
        self, section: CheckpointSection, cases: Sequence[Case], machine: Machine
    ) -> list[PlannedTrial]:
        """Plan trials that test the checkpoints of *cases*.

        Each case saves, continues, and resumes from its own checkpoint; it also resumes from that of the
        reference of its group, and the reference from that of the case. With this star the number of trials
        grows linearly with the cases, and a fault belongs to one case.
        """
        # the same training, on any number of devices and by any means
        groups = group_by(cases, _training_key)
        return [task for group in groups.values() for task in _star_trials(section, group)]

    def sequential_steps(self, task: PlannedTrial, measure: MeasureConfig) -> int:
        """Steps before a save, and after it those of the training and of up to three resumed trainings."""
        options = task.job.options_as(CheckpointOptions)
        return options.steps_before + 4 * options.steps_after


def _training_key(case: Case) -> Hashable:
    """Key shared by cases whose trainings are the same."""
    return case.work_key(
        (*TUNABLE_FIELDS, "world_size")
    ), case.batch.total_micro_batches if case.depends_on_batch_division else 0


def _star_trials(checkpoint: CheckpointSection, cases: Sequence[Case]) -> list[PlannedTrial]:
    reference = next((case for case in cases if case.strategy.name == REFERENCE_STRATEGY), cases[0])
    others = [(case, _share_shard_format(case, reference)) for case in cases if case is not reference]
    own = CheckpointOptions(**dataclasses.asdict(checkpoint), role="case")
    given = dataclasses.replace(own, source=reference.name, source_id=reference.id)
    first = dataclasses.replace(own, directly=any(directly for _, directly in others))
    tasks = [
        PlannedTrial(reference, job=JobSpec("checkpoint", first), output_file=_full_state_file(reference))
    ]
    for case, directly in others:
        options = dataclasses.replace(given, directly=directly)
        job = JobSpec("checkpoint", options)
        tasks.append(
            PlannedTrial(
                case, job=job, output_file=_full_state_file(case), input_file=_full_state_file(reference)
            )
        )
    for number, (case, directly) in enumerate(others, 1):
        back = dataclasses.replace(own, role="back", of=case.id, source=case.name, source_id=case.id)
        job = JobSpec("checkpoint", dataclasses.replace(back, directly=directly))
        tasks.append(PlannedTrial(reference, number, job, input_file=_full_state_file(case)))
    return tasks


def _share_shard_format(case: Case, other: Case) -> bool:
    """True if each of the two cases can load the shards of the other."""
    formats = {
        registry.create_plugin("strategies", each.strategy).checkpoint_format for each in (case, other)
    }
    # block-wise codes and scales are not tensors that could be split differently
    is_quantized = optimizers.entry_of(case.optimizer).is_compiled
    return (
        formats != {""} and len(formats) == 1 and not is_quantized and case.environment == other.environment
    )


def _full_state_file(case: Case) -> str:
    return f"full-{case.id}.safetensors"

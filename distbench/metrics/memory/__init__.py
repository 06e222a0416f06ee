"""``memory``: peak memory of a rank, and by kind, from the allocator's own counters."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distbench import optimizers
from distbench.core.columns import TableColumn, TableSpec, columns_of
from distbench.core.dtypes import DTYPE_BYTES
from distbench.metrics.base import Metric, NotAvailable, PassContext, Values, partial_training_reason

MEMORY_KIND_DOCS = {
    "parameters": "Parameters of a rank between steps: its shard, if sharded.",
    "gradients": "Gradients of a rank.",
    "optimizer_state": "Optimizer states of a rank (moments).",
    "master": "Weights that the optimizer updates in place of the parameters.",
    "states": "Model states of a rank: parameters, gradients, optimizer states and master weights at once.",
    "buffers": "Buckets of communication, and gathered copies of sharded parameters.",
    "activations": "Memory that a step adds: inputs, logits, tensors saved by autograd, casts.",
}
"""Kind of memory -> definition; ``memory_<kind>`` is also a column of the record."""


def _bytes(name: str, doc: str) -> TableColumn:
    return TableColumn(name, "bigint", doc, "B")


TABLE = TableSpec(
    "memory",
    "Memory of a rank at the end of each phase of one step, by kind. parameters + gradients + "
    "optimizer_state + master + buffers + activations + other = allocated + host.",
    (
        TableColumn(
            "phase",
            "varchar",
            "build, forward, backward, step; update: before an update inside the backward pass, when "
            "most gradients exist; theory: expected size of the model states.",
        ),
        TableColumn("micro_batch", "bigint", "Micro-batch of the step, from 0 on."),
        TableColumn("stage", "bigint", "For a pipeline, the stage that ran, from 0 on; null: none."),
        _bytes("allocated", "Bytes of tensors, as counted by the allocator."),
        _bytes("peak", "Maximum of these bytes during the phase."),
        *(_bytes(name, doc) for name, doc in MEMORY_KIND_DOCS.items()),
        _bytes("other", "Memory of unknown kind at the start of the step."),
        _bytes("host", "The part of all kinds that is in host memory although the rank computes on a GPU."),
    ),
)
PEAK_TABLE = TableSpec(
    "memory_peak_holders",
    "What holds the memory of a rank at the peak of the counted step; the rows of a rank add up to it.",
    (
        TableColumn("phase", "varchar", "Phase with the peak: forward, backward, step."),
        TableColumn(
            "holder",
            "varchar",
            "forward, backward, step: tensors that operations of this phase made; before: tensors from "
            "before the forward pass; internal: allocated below torch's dispatcher, as collectives "
            "and compiled code do; transient: allocated and freed within one operation, and growth of less "
            "than 0.1%.",
        ),
        TableColumn(
            "op", "varchar", "Operation that made them, such as aten::cat; null: several, or unknown."
        ),
        TableColumn("place", "varchar", "Line and function that called it, the innermost outside of torch."),
        _bytes("bytes", "Bytes that exist at the peak."),
    ),
)
_MAXIMUM_DOC = (
    "Maximum over the ends of the phases of the counted step, and over ranks. If rows differ in length, the "
    "timed steps, of which memory_peak is, may have longer ones."
)


@dataclass(frozen=True)
class Memory(Metric):
    """Memory of a rank, peak and by kind: allocator-level bytes, never the resident set alone."""

    tables = (TABLE, PEAK_TABLE)
    early_imports = ("distbench.metrics.memory.phases",)
    # warmup begins with the engine as it was built; time gives peaks; count gives the phases of a step
    passes = frozenset({"warmup", "time", "count"})
    columns = (
        *columns_of("B", "lower", "max")(
            memory_peak="Peak bytes of tensors alive at once in the timed steps; maximum over ranks. CUDA: "
            "allocated_bytes.all.peak. CPU: counted in torch's CPU allocator.",
            memory_active_peak="CUDA: active_bytes.all.peak, tensors and blocks that other streams still "
            "hold back.",
            memory_reserved_peak="CUDA: reserved_bytes.all.peak, the segments allocated on the device: "
            "of torch's counters, the closest to an out-of-memory error.",
            memory_device_peak="CUDA: memory_reserved_peak, plus all other memory in use on the device "
            "after the timed steps (cudaMemGetInfo): CUDA context, kernels, buffers of NCCL and "
            "cuBLAS, and other processes. A device must have this much memory.",
        ),
        *columns_of("", "lower", "sum")(
            memory_alloc_retries="CUDA: num_alloc_retries, allocations that succeeded only after the cache "
            "was flushed.",
            memory_ooms="CUDA: num_ooms, out-of-memory errors in the timed steps that were caught.",
        ),
        *columns_of("B", "lower", "max")(
            memory_pinned_peak="CUDA: allocated_bytes.peak of torch's pinned host allocator, since the "
            "start of the process: host memory that offload occupies permanently.",
        ),
        *columns_of("B", "lower", "sum")(
            memory_host="Proportional set size (PSS) of all ranks after the timed steps: resident pages, "
            "with shared pages divided among the processes that share them. Includes pinned memory.",
        ),
        *columns_of("B", None, "max")(
            memory_resident_peak="Peak resident memory of a rank's process so far (VmHWM). It includes "
            "freed pages, code and other libraries and would rank strategies wrongly, so it is shown "
            "only next to the allocator's bytes.",
        ),
        *columns_of("B", "lower", "max")(
            **{f"memory_{name}": f"{doc} {_MAXIMUM_DOC}" for name, doc in MEMORY_KIND_DOCS.items()}
        ),
        *columns_of("B", None, "max")(
            memory_states_theory="Model states of a rank by the table of ZeRO (Rajbhandari et al. 2020, "
            "arXiv:1910.02054), with the dtypes in use; without padding and buffers.",
        ),
    )

    # a GPU's allocator has its own counters
    devices = frozenset({"cpu"})

    def prepare(self) -> list[str]:
        from distbench.metrics.memory import allocators

        return allocators.build_library()

    def install(self) -> None:
        import torch

        from distbench.metrics.memory import counting_library

        counting_library.install(torch.__version__)

    def start(self, context: PassContext) -> Any:
        from distbench.metrics.memory import allocators
        from distbench.metrics.memory.phases import MemoryPhases

        books = allocators.allocator_stats(context)
        if context.pass_name == "time":
            if books:
                books.reset_peak()
            return books
        phases = MemoryPhases(context, books)
        if context.pass_name == "warmup":
            phases.end_phase("build")
        return phases

    def around(self, context: PassContext, state: Any, span: str) -> AbstractContextManager[Any]:
        # of the passes above only count calls this
        watched: AbstractContextManager[Any] = state.around(span)
        return watched

    def values(self, context: PassContext, state: Any) -> Values:
        from distbench.metrics.memory.allocators import missing_library_reason

        if context.pass_name == "time":
            return {
                **(state.values() if state else {"memory_peak": NotAvailable(missing_library_reason())}),
                "memory_host": _kilobytes(Path("/proc/self/smaps_rollup"), "Pss"),
                "memory_resident_peak": _kilobytes(Path("/proc/self/status"), "VmHWM"),
            }
        context.tables["memory"] = state.rows
        if context.pass_name == "warmup":
            return {}
        context.tables["memory_peak_holders"] = state.peak_holders()
        return {
            **{f"memory_{name}": state.most(name) for name in MEMORY_KIND_DOCS},
            "memory_states_theory": _expected_states(context),
        }


def _expected_states(context: PassContext) -> float | NotAvailable:
    """Return the expected model states in total; add them by kind to the table."""
    case, strategy = context.case, context.strategy
    effective = context.effective
    kinds = strategy.model_states_as_built(case, effective["parameters"], effective)
    if kinds is None:
        return partial_training_reason(context.effective) or NotAvailable(f"{case.label} has no memory model")
    if optimizers.depends_on_shape(case.optimizer):
        # a strategy knows no shapes, but its share of a state with one number per parameter
        one = dataclasses.replace(case.optimizer, name="sgd", momentum=0.9)
        numbers = _optimizer_state_elements(context)
        of_numbers = {**effective, "parameters": numbers, "trained_parameters": numbers}
        one_each = dataclasses.replace(case, optimizer=one)
        alike = strategy.model_states_as_built(one_each, numbers, of_numbers)
        kinds = {**kinds, "optimizer_state": (alike or kinds)["optimizer_state"]}
    states = float(sum(kinds.values()))
    context.tables["memory"].append({"phase": "theory", **kinds, "states": states})
    return states


def _optimizer_state_elements(context: PassContext) -> int:
    """Number of values that the optimizer keeps for the model, by its shapes, in the dtype of its states."""
    from distbench.workloads.shapes import parameter_shapes

    element = DTYPE_BYTES[context.case.precision.optimizer_state]
    kept = optimizers.state_bytes(context.case.optimizer, parameter_shapes(context.workload), element)
    return round(kept / element)


def _kilobytes(file: Path, name: str) -> int | NotAvailable:
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        return NotAvailable(f"{file} can't be read: {error.strerror}")
    sizes = (int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
    return next(sizes, NotAvailable(f"{file} has no {name}"))

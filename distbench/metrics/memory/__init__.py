"""``memory``: peak memory of a rank, and by kind, from the allocator's own counters."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distbench import optimizers
from distbench.core.case import DTYPE_BYTES
from distbench.core.columns import TableColumn, TableSpec, columns_of
from distbench.metrics.base import Metric, NotAvailable, PassContext, Values, partial_training_reason

MEMORY_KIND_DOCS = {
    "parameters": "Parameters of a rank between steps: its shard, if sharded.",
    "gradients": "Gradients of a rank.",
    "optimizer_state": "Optimizer states of a rank (moments).",
    "master": "Weights that the optimizer updates and that are not the parameters themselves.",
    "states": "Model states of a rank: parameters, gradients, optimizer states and master weights at once.",
    "buffers": "Buckets of communication, and gathered copies of sharded parameters.",
    "activations": "What a step adds to all other kinds: inputs, logits, what autograd saved, casts.",
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
            "build, forward, backward, step; update: before an update inside of the backward pass, where "
            "most gradients are; theory: what model states should take.",
        ),
        TableColumn("micro_batch", "bigint", "Micro-batch of the step, from 0 on."),
        TableColumn("stage", "bigint", "Of a pipeline the stage that ran, from 0 on; null: none did."),
        _bytes("allocated", "Bytes of tensors by the allocator's books."),
        _bytes("peak", "Most such bytes during the phase."),
        *(_bytes(name, doc) for name, doc in MEMORY_KIND_DOCS.items()),
        _bytes("other", "What no kind explained when the step began."),
        _bytes("host", "The part of all kinds that is in host memory although the rank computes on a GPU."),
    ),
)
_MAXIMUM_DOC = "Maximum over the ends of the phases of the counted step, and over ranks."


@dataclass(frozen=True)
class Memory(Metric):
    """Memory of a rank, peak and by kind: allocator-level bytes, never the resident set alone."""

    tables = (TABLE,)
    early_imports = ("distbench.metrics.memory.allocators",)
    # warmup begins with the engine as it was built; time gives peaks; count gives the phases of a step
    passes = frozenset({"warmup", "time", "count"})
    columns = (
        *columns_of("B", "lower", "max")(
            memory_peak="Peak bytes of tensors alive at once in the timed steps; maximum over ranks. CUDA: "
            "allocated_bytes.all.peak. CPU: counted in torch's CPU allocator.",
            memory_active_peak="CUDA: active_bytes.all.peak, tensors and blocks that other streams still "
            "hold back.",
            memory_reserved_peak="CUDA: reserved_bytes.all.peak, the segments taken from the device: nearest "
            "to out-of-memory that torch itself counts.",
            memory_device_peak="CUDA: memory_reserved_peak, and what else of the device is in use after the "
            "timed steps by cudaMemGetInfo: CUDA's context, kernels, NCCL's and cuBLAS's buffers, and other "
            "processes on it. It is what a device must have.",
        ),
        *columns_of("", "lower", "sum")(
            memory_alloc_retries="CUDA: num_alloc_retries, allocations that succeeded only after the cache "
            "was flushed.",
            memory_ooms="CUDA: num_ooms, out-of-memory errors thrown in the timed steps, caught by somebody.",
        ),
        *columns_of("B", "lower", "max")(
            memory_pinned_peak="CUDA: allocated_bytes.peak of torch's pinned host allocator, since the "
            "process began: what offload takes from the host for good.",
        ),
        *columns_of("B", "lower", "sum")(
            memory_host="Proportional set size (PSS) of all ranks after the timed steps, what they take "
            "from the host: resident pages, shared ones divided by those who share them. Pinned memory is "
            "part of it.",
        ),
        *columns_of("B", None, "max")(
            memory_resident_peak="Most resident memory of a rank's process so far (VmHWM). It holds freed "
            "pages, code and other libraries, and would rank strategies wrongly: shown only next to the "
            "allocator's bytes.",
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
        from distbench.metrics.memory import allocators

        if library := allocators.library():
            library.distbench_install()

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

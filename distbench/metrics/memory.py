"""``memory``: what a rank needs, at most and by kind, from the allocator's own books."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from distbench.metrics.base import Absent, Column, Metric, Pass, Session, Values

_KINDS = {
    "parameters": "Parameters of a rank as they stand between steps: a shard, where they are sharded.",
    "gradients": "Gradients of a rank.",
    "optimizer_state": "Optimizer states of a rank (moments).",
    "master": "Weights that the optimizer updates and that are not the parameters themselves.",
    "buffers": "Buckets of communication, and gathered copies of sharded parameters.",
    "activations": "What a step adds to all other kinds: inputs, logits, what autograd saved, casts.",
    "states": "Model states of a rank: parameters, gradients, optimizer states and master weights at once.",
}
_AT_MOST = " Most at the end of any phase of the counted step, of the rank that needs most."


def _bytes(name: str, doc: str) -> Column:
    return Column(f"memory_{name}", "B", "lower", "max", doc)


@dataclass(frozen=True)
class Memory(Metric):
    """Memory of a rank, peak and by kind: allocator-level bytes, never the resident set alone."""

    # Rows of the table ``memory``, of each rank: ``phase`` (build, then forward, backward and step of the
    # counted step; theory), ``micro_batch``, ``allocated`` at its end and ``peak`` within, and the kinds.
    # They add up: parameters + gradients + optimizer_state + master + buffers + activations + other
    # = allocated + host, where ``host`` is the part that stands off the device.

    # warm-up begins with the engine as it was built; time gives peaks; count the phases of a step
    passes: ClassVar[frozenset[Pass]] = frozenset({"warmup", "time", "count"})
    columns: ClassVar[tuple[Column, ...]] = (
        _bytes(
            "peak",
            "Most bytes of tensors alive at once in the timed steps, of the rank that needs most. CUDA: "
            "allocated_bytes.all.peak. CPU: counted in torch's CPU allocator.",
        ),
        _bytes(
            "active_peak",
            "CUDA: active_bytes.all.peak, tensors and blocks that other streams still hold back.",
        ),
        _bytes(
            "reserved_peak",
            "CUDA: reserved_bytes.all.peak, the segments taken from the device: nearest to out-of-memory.",
        ),
        Column(
            "memory_alloc_retries",
            "",
            "lower",
            "sum",
            "CUDA: num_alloc_retries, allocations that succeeded only after the cache was flushed.",
        ),
        Column(
            "memory_ooms",
            "",
            "lower",
            "sum",
            "CUDA: num_ooms, out-of-memory errors thrown in the timed steps, caught by somebody.",
        ),
        _bytes(
            "pinned_peak",
            "CUDA: allocated_bytes.peak of torch's pinned host allocator, since the process began: what "
            "offload takes from the host for good.",
        ),
        Column(
            "memory_host",
            "B",
            "lower",
            "sum",
            "Proportional set size (PSS) of all ranks after the timed steps, what they take from the host: "
            "resident pages, shared ones divided by those who share them. Pinned memory is part of it.",
        ),
        Column(
            "memory_resident_peak",
            "B",
            None,
            "max",
            "Most resident memory of a rank's process so far (VmHWM). It holds freed pages, code and other "
            "libraries, and ranks strategies wrongly: shown beside the allocator's bytes only.",
        ),
        *(_bytes(name, doc + _AT_MOST) for name, doc in _KINDS.items()),
        Column(
            "memory_states_theory",
            "B",
            None,
            "max",
            "Model states of a rank by the table of ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054), with "
            "the dtypes in use; without padding and buffers.",
        ),
    )

    def prepare(self) -> None:
        from distbench.metrics import _cpu_allocator

        _cpu_allocator.build()

    def install(self) -> None:
        from distbench.metrics import _cpu_allocator

        if library := _cpu_allocator.library():
            library.distbench_install()

    def start(self, session: Session) -> Any:
        from distbench.metrics._books import books_of
        from distbench.metrics._phases import Phases

        books = books_of(session)
        if session.pass_ == "time":
            if books:
                books.reset_peak()
            return books, books.faults() if books else {}
        phases = Phases(session, books)
        if session.pass_ == "warmup":
            phases.end("build")
        return phases

    def around(self, session: Session, state: Any, span: str) -> AbstractContextManager[Any]:
        return state.around(span) if session.pass_ == "count" else nullcontext()

    def values(self, session: Session, state: Any) -> Values:
        if session.pass_ == "time":
            return {**_peaks(*state), "memory_host": _proportional(), "memory_resident_peak": _resident()}
        session.tables["memory"] = state.rows
        if session.pass_ == "warmup":
            return {}
        return {
            **{f"memory_{name}": _most(state, name) for name in _KINDS},
            "memory_states_theory": _theory(session),
        }


def _peaks(books: Any, faults_before: dict[str, int]) -> Values:
    if books is not None:
        return dict(books.values(faults_before))
    from distbench.metrics import _cpu_allocator

    return {"memory_peak": Absent(_cpu_allocator.why_not())}


def _most(phases: Any, name: str) -> float | Absent:
    most = phases.most(name)
    if most is not None:
        return float(most)
    if phases.knows_kinds:
        from distbench.metrics import _cpu_allocator

        return Absent(_cpu_allocator.why_not())
    return Absent("the strategy's engine does not tell what it keeps")


def _theory(session: Session) -> float | Absent:
    """Return what the strategy should keep by theory, and leave it by kind in the table."""
    kinds = session.strategy.model_states(session.case, session.effective["parameters"])
    if kinds is None:
        return Absent(f"{session.case.label} has no theory of what it keeps")
    states = float(sum(kinds.values()))
    session.tables["memory"].append({"phase": "theory", **kinds, "states": states})
    return states


def _proportional() -> int | Absent:
    return _kilobytes(Path("/proc/self/smaps_rollup"), "Pss")


def _resident() -> int | Absent:
    return _kilobytes(Path("/proc/self/status"), "VmHWM")


def _kilobytes(file: Path, name: str) -> int | Absent:
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        return Absent(f"{file} can't be read: {error.strerror}")
    found = (int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
    return next(found, Absent(f"{file} has no {name}"))

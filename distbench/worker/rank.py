"""Run one rank of one trial, and write its result or its error."""

import faulthandler
import functools
import gc
import importlib
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from distbench.core import registry
from distbench.core.case import Case
from distbench.core.job import JobKind, job_kind
from distbench.core.meshes import MeshShape
from distbench.core.serialization import replace_nonfinite
from distbench.core.text import truncate_middle
from distbench.ipc.trial_files import (
    DETERMINISM_KEY,
    DISK_FULL_ERRNOS,
    PREPARE_FOLDER,
    PhaseTimer,
    ProgressWriter,
    RankError,
    TrialInstructions,
    log_file,
    memory_snapshot_file,
    partial_result_file,
    progress_file,
    result_file,
)
from distbench.metrics.utilisation.matmul import set_fp32_precision
from distbench.strategies.base import RankContext, Strategy
from distbench.system import clock
from distbench.system.files import write_atomic
from distbench.worker import checks
from distbench.worker.cuda_device import open_cuda_device
from distbench.worker.determinism import (
    fix_cublas_workspace,
    run_deterministically,
    share_nondeterministic_operation,
)
from distbench.worker.live_tensors import keep_snapshot, live_tensor_lines
from distbench.worker.rank_environment import device_facts, rank_environment
from distbench.worker.rendezvous import StoreExchange, connect_nccl, join_process_group
from distbench.worker.trainer import RankResult
from distbench.worker.user_code import imported_code_digest, user_line
from distbench.workloads.base import Workload

RankFunction = Callable[[TrialInstructions, RankContext, PhaseTimer], RankResult | Iterator[RankResult]]
"""Function of trial, context and phase timer that returns the rank's result. An iterator yields ever more
complete results: if a rank fails later, those that every rank has yielded stay valid."""

# maximum characters of an exception in a record, as foreign code may have raised it
_MAX_MESSAGE, _MAX_TRACEBACK = 4_000, 20_000
_SHOWN_TENSORS = 3
# in a rank forked from a fork server, that server has imported this module
_IMPORTING_PID = os.getpid()


def run_rank(file: Path, listen_fd: int | None = None) -> NoReturn:
    """Run the rank that ``RANK`` names in the trial of *file*, and end the process.

    *listen_fd* is the listening socket of the rendezvous, if the launcher has already bound one.
    """
    began, rank = clock.now(), int(os.environ["RANK"])
    folder = file.parent
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    progress = ProgressWriter(progress_file(folder, rank))
    progress.report("start")
    phases = PhaseTimer(progress)
    # once known, also reported by a rank that fails
    place: dict[str, Any] = {}
    trial: TrialInstructions | None = None
    try:
        trial = TrialInstructions.read(file)
        results = _run_job(trial, folder, rank, phases, listen_fd, place)
        _write_results(folder, rank, ({**result, **place, "began": began} for result in results))
        progress.report("done")
        code = 0
    except BaseException as error:
        # the edge of the process: whatever a framework or a user's model raises is written to a file
        line = user_line(error, trial.case.workload, trial.case.data) if trial else ""
        report = _error_report(error, phases.current, log_file(folder, rank))
        if trial and _is_out_of_memory(error):
            report = replace(report, largest=_show_memory(trial.case.device, folder, rank))
        code = _write_error(replace(report, user_line=line, device=place.get("device")), folder, rank)
        with suppress(OSError):
            traceback.print_exc()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # an interpreter that exits normally after gloo's teardown sometimes aborts
    os._exit(code)


def rank_function(kind: JobKind) -> RankFunction:
    """Function of *kind* that each rank calls."""
    module, _, function = kind.ranks.partition(":")
    called: RankFunction = getattr(importlib.import_module(module, type(kind).__module__), function)
    return called


def _write_results(folder: Path, rank: int, results: Iterable[dict[str, Any]]) -> None:
    """Write each of the growing *results* as the partial result, and the last one as the result."""
    so_far, text = partial_result_file(folder, rank), ""
    for result in results:
        text = _encode(result)
        # not flushed to disk, which takes time: it only has to outlive the process
        aside = so_far.with_suffix(".part")
        aside.write_text(text, encoding="utf-8")
        aside.replace(so_far)
    write_atomic(result_file(folder, rank), text)
    so_far.unlink(missing_ok=True)


def _encode(data: dict[str, Any]) -> str:
    return json.dumps(replace_nonfinite(data), allow_nan=False)


def _write_error(report: RankError, folder: Path, rank: int) -> int:
    """Write the *report* of *rank*; return the exit code, which shows if the disk is full."""
    try:
        report.write(folder, rank)
    except OSError as error:
        return error.errno if error.errno in DISK_FULL_ERRNOS else 1
    return 1


def _error_report(error: BaseException, phase: str, log: Path) -> RankError:
    whole = f"the full text is in {log.name}"
    return RankError(
        at=clock.now(),
        phase=phase,
        types=[cls.__name__ for cls in type(error).__mro__],
        message=truncate_middle(str(error), _MAX_MESSAGE, whole),
        traceback=truncate_middle("".join(traceback.format_exception(error)), _MAX_TRACEBACK, whole),
        device_free=_free_device_memory(error),
    )


def _is_out_of_memory(error: BaseException) -> bool:
    # torch's allocators of CUDA and of the host, Python's, and calls of CUDA
    kinds = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, kinds) or bool(re.search("(allocate|enough|out of) memory", str(error)))


def _show_memory(device_type: str, folder: Path, rank: int) -> list[str]:
    """Print the largest tensors of *rank* and keep the allocator's snapshot; return the first few lines."""
    try:
        lines = live_tensor_lines(device_type)
        sys.stderr.write("\n  ".join(["Largest tensors that Python holds:", *lines]) + "\n")
        if keep_snapshot(file := memory_snapshot_file(folder, rank)):
            sys.stderr.write(f"Snapshot of the allocator, for https://pytorch.org/memory_viz: {file.name}\n")
    except Exception:
        # objects of foreign code are inspected, and the error itself must be written whatever they do
        traceback.print_exc()
        return []
    return lines[:_SHOWN_TENSORS]


def _free_device_memory(error: BaseException) -> int | None:
    """Free bytes on the device: distinguishes it from host memory that CUDA could not pin.

    None: *error* is not about memory outside of torch's allocator, or CUDA does not answer.
    """
    is_of_cuda = "out of memory" in str(error) and not isinstance(error, torch.OutOfMemoryError)
    if not (is_of_cuda and torch.cuda.is_initialized()):
        return None
    with suppress(RuntimeError):
        return torch.cuda.mem_get_info()[0]
    return None


def _run_job(
    trial: TrialInstructions,
    folder: Path,
    rank: int,
    phases: PhaseTimer,
    listen_fd: int | None,
    rank_facts: dict[str, Any],
) -> Iterator[dict[str, Any]]:
    """Yield growing results of this rank; add facts about its device to *rank_facts* once known."""
    case, processes = trial.case, int(os.environ["WORLD_SIZE"])
    kind = job_kind(trial.job.kind)
    if kind.is_deterministic:
        fix_cublas_workspace()
    with phases.phase("start"):
        device = _set_up_device(case)
        rank_facts["device"] = device_facts(device)
        # longer than the parent's own deadlines: the parent knows which rank is behind and dumps the stacks
        patience_s = 2 * max(trial.limits.step, trial.limits.build) + 30
        store = join_process_group(
            rank,
            processes,
            device,
            listen_fd,
            join_timeout_s=trial.limits.start,
            collective_timeout_s=patience_s,
        )
        connect_nccl(device)
    workload: Workload = registry.create_plugin("workloads", case.workload)
    weights, nodes = Path(trial.weights), _node_of_ranks(processes)
    strategy: Strategy = registry.create_plugin("strategies", case.strategy)
    parts = [strategy.data_parallel_rank(each, processes) for each in range(processes)]
    found = weights.parents[1] / PREPARE_FOLDER
    setting = RankContext(
        case,
        workload,
        weights,
        device,
        rank,
        processes,
        folder,
        node_of_rank=nodes,
        data_rank_of=parts,
        random_stream=_random_stream(strategy, rank, processes),
        run_cache=found,
        store=store,
    )
    job = functools.partial(rank_function(kind), trial, setting, phases)
    # jobs that build many engines collect garbage before each, and imported objects are never garbage
    gc.freeze()
    facts: dict[str, Any] = {"warm": os.getpid() != _IMPORTING_PID}
    if kind.is_deterministic:
        # shorter than the time after which the parent considers waiting ranks hung
        agreement = StoreExchange(store, rank, processes, trial.limits.step / 2)
        delivered, facts[DETERMINISM_KEY] = run_deterministically(
            job, functools.partial(share_nondeterministic_operation, agreement)
        )
    else:
        delivered = job()
    for delivery in [delivered] if isinstance(delivered, RankResult) else delivered:
        environment = {**rank_environment(device), **facts, **delivery.facts}
        code = imported_code_digest()
        # whatever imports and the model have done to them so far
        variables = {**checks.check_variables(case), **checks.describe_framework(case)}
        effective = delivery.effective and {**delivery.effective, **variables}
        common_facts = {
            "effective": effective,
            "environment": environment,
            "phases": phases.seconds,
            "code": code,
        }
        yield {**vars(delivery), **common_facts}
    # no rank may leave while another still communicates with it
    dist.barrier()


def _random_stream(strategy: Strategy, rank: int, ranks: int) -> int:
    """Stream of random numbers of *rank*; a strategy without a mesh divides samples alone."""
    sizes = strategy.mesh_sizes(ranks)
    return MeshShape(sizes).random_stream(rank) if sizes else strategy.data_parallel_rank(rank, ranks)


def _set_up_device(case: Case) -> torch.device:
    torch.set_num_threads(case.threads)
    # what a model draws as it is built must not depend on the process that it was forked from
    torch.manual_seed(case.seed)
    set_fp32_precision(case.precision.matmul)
    if case.device == "cpu":
        return torch.device("cpu")
    if torch.cuda._is_in_bad_fork():
        raise RuntimeError(
            "an import initialised CUDA before the ranks were forked; set launcher.local.warm: false"
        )
    return open_cuda_device(int(os.environ["LOCAL_RANK"]))


def _node_of_ranks(processes: int) -> list[int]:
    """Node number of each rank, as the launcher counts nodes. A collective call."""
    node_numbers = [torch.zeros(1, dtype=torch.int64) for _ in range(processes)]
    dist.all_gather(node_numbers, torch.tensor([int(os.environ["GROUP_RANK"])]))
    return [int(node) for node in node_numbers]

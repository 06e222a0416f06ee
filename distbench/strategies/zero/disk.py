"""Disk space, traffic and locked memory of NVMe offload.

DeepSpeed (0.19.8) checks no result of its libaio requests: on a full disk it continues to train with the
previous content of the file. So free space is checked first, and files are checked for holes afterwards.
"""

from __future__ import annotations

import glob
import os
import resource
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.core.units import format_bytes
from distbench.optimizers import ParameterShape, state_bytes
from distbench.strategies.base import UnsupportedCase

if TYPE_CHECKING:
    from distbench.strategies.zero import Zero
    from distbench.strategies.zero.config import ModelSizes

MIN_SWAP_BYTES = 1 << 20
"""Bytes of the smallest tensor that DeepSpeed moves to a disk; smaller ones stay in memory."""
_FOLDER = "distbench-offload-{port}"
_OPTIMIZER_BUFFERS, _PARAMETER_BUFFERS = 4, 5
"""Number of buffers locked in memory: DeepSpeed's own ``buffer_count`` of optimizer and parameters."""
_CAP_IPC_LOCK = 1 << 14
"""CAP_IPC_LOCK (capabilities(7))."""


class OffloadDiskFullError(Exception):
    """The disk has too little space for the offloaded states; the message has free and needed bytes."""


def leftovers(path: str) -> tuple[str, ...]:
    """Pattern of a trial's folder in *path*, by the port of its rendezvous."""
    plain = glob.escape(path).replace("{", "{{").replace("}", "}}")
    return (f"{plain}/{_FOLDER}",)


def trial_folder(path: str) -> Path:
    """Folder of this rank's trial in *path*: concurrent trials must not write the same files."""
    return Path(path).absolute() / _FOLDER.format(port=os.environ["MASTER_PORT"])


def sizes(strategy: Zero, elements: ModelSizes, ranks: int) -> dict[str, int]:
    """Sizes in elements that let a disk hold a model of any size, by distbench's names.

    With DeepSpeed's own sizes, an optimizer steps in parts of 1e9 elements of a rank, with a buffer for each
    of their states, so that the optimizer of a smaller model stays in memory all the time; and a parameter of
    more than 1e8 elements of a rank fails. *ranks* shard every parameter.
    """
    chosen = {}
    if strategy.offload_optimizer == "nvme":
        chosen["sub_group_size"] = strategy.sub_group_size or max(
            -(-elements.largest_layer // ranks), MIN_SWAP_BYTES // DTYPE_BYTES["fp32"]
        )
    if strategy.offload_parameters == "nvme":
        chosen["nvme_buffer_size"] = -(-elements.largest_parameter // ranks)
    return chosen


def locked_bytes(strategy: Zero, case: Case, elements: ModelSizes) -> int:
    """Minimum number of bytes of buffers that DeepSpeed locks in memory for a rank."""
    chosen, shard = sizes(strategy, elements, case.world_size), -(-elements.total // case.world_size)
    part = min(shard, chosen.get("sub_group_size", 0))
    of_optimizer = _OPTIMIZER_BUFFERS * part * DTYPE_BYTES[case.precision.master]
    of_parameters = _PARAMETER_BUFFERS * chosen.get("nvme_buffer_size", 0)
    reused = min(shard, chosen.get("sub_group_size", shard)) if strategy.offload_parameters == "nvme" else 0
    return of_optimizer + (of_parameters + reused) * DTYPE_BYTES[case.precision.compute]


def disk_bytes(strategy: Zero, case: Case, parameters: int) -> int:
    """Maximum bytes of a rank on the disk; tensors below ``MIN_SWAP_BYTES`` stay in memory."""
    moved = _state_bytes(strategy, case) + _weight_bytes(strategy, case)
    return int(parameters / case.world_size * moved)


def disk_traffic(strategy: Zero, case: Case, parameters: int) -> dict[str, float]:
    """Maximum bytes that a rank reads and writes in a step.

    An update reads master weights, moments and gradients and writes them back (gradients after the backward
    pass); parameters are read for the forward and for the backward pass of each micro-batch, and written
    after the update (Rajbhandari et al. 2021, arXiv:2104.07857, section 5).
    """
    shard, weights = parameters / case.world_size, _weight_bytes(strategy, case)
    states = _state_bytes(strategy, case)
    passes = 2 * case.batch.gradient_accumulation_steps
    return {"read": shard * (states + passes * weights), "written": shard * (states + weights)}


def _state_bytes(strategy: Zero, case: Case) -> float:
    """Bytes per element of master weights, gradients and moments on the disk."""
    if strategy.offload_optimizer != "nvme":
        return 0.0
    moments = state_bytes(case.optimizer, [ParameterShape((1,))], DTYPE_BYTES[case.precision.optimizer_state])
    return 2 * DTYPE_BYTES[case.precision.master] + moments


def _weight_bytes(strategy: Zero, case: Case) -> int:
    return DTYPE_BYTES[case.precision.compute] if strategy.offload_parameters == "nvme" else 0


def create_folder(path: str, needed: int) -> Path:
    """Folder of this trial in *path*, created if missing, on a disk with space for *needed* bytes.

    Raises:
        OffloadDiskFullError: the disk has less free space.
        UnsupportedCase: its files can't be opened past the page cache, as DeepSpeed does.
    """
    folder = trial_folder(path)
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f"direct-{os.getpid()}"
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600))
    except OSError as error:
        raise UnsupportedCase(
            f"nvme_path = {path}: files there can't be opened with O_DIRECT ({error.strerror}), which "
            "DeepSpeed's async_io needs; use a folder on a local disk"
        ) from error
    finally:
        probe.unlink(missing_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OffloadDiskFullError(_full_text(path, free, f"the states need up to {format_bytes(needed)}"))
    return folder


def check_memlock(size: int) -> None:
    """Check that this process may lock *size* bytes in memory: otherwise DeepSpeed kills it silently.

    Raises:
        UnsupportedCase: the limit is lower.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    status = Path("/proc/self/status").read_text()
    capabilities = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    if limit == resource.RLIM_INFINITY or size <= limit or int(capabilities, 16) & _CAP_IPC_LOCK:
        return
    raise UnsupportedCase(
        f"offload to NVMe needs {format_bytes(size)} of locked memory per rank, but the limit here is "
        f"{format_bytes(limit)}; raise it (ulimit -l unlimited; docker run --ulimit memlock=-1)"
    )


def bytes_on_disk(folder: Path, rank: int) -> dict[str, int]:
    """Bytes of *rank* in DeepSpeed's files below *folder*, by kind of offloaded state.

    Raises:
        OffloadDiskFullError: a file has holes, and the disk has no space to fill them.
    """
    found, holes = {"optimizer": 0, "parameters": 0}, 0
    for file in folder.glob(f"zero_stage_3/*/rank{rank}/*.swp"):
        status = file.stat()
        on_disk = 512 * status.st_blocks
        found["optimizer" if file.parts[-3] == "optimizer" else "parameters"] += min(status.st_size, on_disk)
        holes += max(0, status.st_size - on_disk)
    free = shutil.disk_usage(folder).free
    if holes > free:
        lacking = f"{format_bytes(holes)} of the states that DeepSpeed wrote are missing"
        raise OffloadDiskFullError(_full_text(str(folder.parent), free, lacking))
    return found


def check_free_space(folder: Path) -> None:
    """Check that data just written to *folder* fit: missing data ends the process when it is read.

    Raises:
        OffloadDiskFullError: the disk has no space for a block.
    """
    if (free := shutil.disk_usage(folder).free) < MIN_SWAP_BYTES:
        raise OffloadDiskFullError(
            _full_text(str(folder.parent), free, "DeepSpeed does not report failed writes")
        )


@contextmanager
def report_full_disk(folder: Path) -> Iterator[None]:
    """Report a full disk if DeepSpeed fails because of it, with an AssertionError without a message."""
    try:
        yield
    except (AssertionError, OSError, RuntimeError) as error:
        free = shutil.disk_usage(folder).free
        if free < MIN_SWAP_BYTES:
            why = f"DeepSpeed failed to write there ({type(error).__name__})"
            raise OffloadDiskFullError(_full_text(str(folder.parent), free, why)) from error
        raise


def with_folder(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """DeepSpeed's *config* with all offloaded state in *folder*."""
    section = {
        key: {**value, "nvme_path": str(folder)}
        if isinstance(value, dict) and "nvme_path" in value
        else value
        for key, value in config["zero_optimization"].items()
    }
    return {**config, "zero_optimization": section}


def _full_text(path: str, free: int, why: str) -> str:
    return f"nvme_path = {path}: the disk is full ({format_bytes(free)} free), and {why}; free some space"

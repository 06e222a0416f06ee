"""Build DeepSpeed's C++ ops once, in a folder of distbench's own, and check the toolchain."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from distbench.core.machine import Machine, package_folder
from distbench.system import build_cache
from distbench.system.build_cache import NativeLibraryError

BUILDERS_BY_KERNEL = {"DeepSpeedCPUAdam": ["CPUAdamBuilder"], "FusedAdam": ["FusedAdamBuilder"]}
"""Kernel of an optimizer -> DeepSpeed's builders of its ops."""
_OP_OF_BUILDER = {
    "AsyncIOBuilder": "async_io",
    "CPUAdamBuilder": "cpu_adam",
    "FusedAdamBuilder": "fused_adam",
    "PinMemoryBuilder": "pin_memory",
    "ShareMemCommBuilder": "deepspeed_shm_comm",
}
"""DeepSpeed's builder -> name of its op, which is also that of the op's library."""
_BUILD_VARIABLES = {name: name.upper() for name in _OP_OF_BUILDER.values()} | {"async_io": "AIO"}
"""Op -> suffix of the variable ``DS_BUILD_...`` that makes the installation of DeepSpeed build it."""
_GLOBALLY_LOADED = ("pin_memory",)
"""Ops whose symbols the libraries of other ops need: async_io calls the allocator of pin_memory."""
INSTALL_LIBAIO = (
    "install it with its header (Debian: apt-get install libaio-dev; Fedora: dnf install libaio-devel)"
)
"""Advice on installing the library that DeepSpeed's async_io is built with."""
_LOCK_RELEASE_S = 0.5
"""Seconds within which a builder that has closed its lock file has removed it."""


def op_names(builders: Sequence[str]) -> str:
    """Names of the ops of *builders*, as a message lists them."""
    return ", ".join(_OP_OF_BUILDER[builder] for builder in builders)


def toolchain_problem(builders: Sequence[str], folder: Path, machine: Machine) -> str | None:
    """Reason why *machine* can't provide the ops of *builders*; None if it can.

    *folder* may already contain them.
    """
    if machine.has_compiler and machine.has_ninja:
        return None
    asked = [_OP_OF_BUILDER[builder] for builder in builders]
    needed = [name for name in asked if not _is_preinstalled(name, machine.deepspeed)]
    if needed and not machine.has_ninja:
        return f"DeepSpeed loads its C++ op {needed[0]} with ninja, which is not installed; pip install ninja"
    missing = [name for name in needed if not _library_file(folder, name).is_file()]
    if missing and not machine.has_compiler:
        return (
            f"DeepSpeed's C++ op {missing[0]} must be built, but no C++ compiler was found; install one "
            "(Debian: apt-get install g++), or set CXX"
        )
    return None


def build_ops(builders: Sequence[str], folder: Path) -> list[str]:
    """Build the ops of *builders* that are missing or damaged in *folder*; return messages for users."""
    from deepspeed.accelerator import get_accelerator

    notes = [f"removed a stale build lock: {lock}" for lock in clear_stale_locks(folder)]
    for kind in builders:
        builder, name = get_accelerator().create_op_builder(kind), _OP_OF_BUILDER[kind]
        if builder is None:
            continue
        load = partial(_load, builder, name)
        if not _is_preinstalled(name, package_folder("deepspeed")):
            _check_device(name, get_accelerator().device_name())
            notes += build_cache.ensure_built(_library_file(folder, name), load, outputs=folder / name)
        # ninja rebuilds an existing op that is out of date: better here than while a rank waits
        load()
    return notes


def preload_ops(builders: Sequence[str], folder: Path) -> None:
    """Register the ops of *builders* in *folder* with DeepSpeed, as if it had loaded them.

    Otherwise it first determines the build flags (py-cpuinfo detects the processor twice, for seconds, in
    every rank), and asks ninja if anything needs building, which the preparation has already done.
    """
    from deepspeed.accelerator import get_accelerator

    for kind in builders:
        builder, name = get_accelerator().create_op_builder(kind), _OP_OF_BUILDER[kind]
        library = _library_file(folder, name)
        if builder is None or not library.is_file() or _is_preinstalled(name, package_folder("deepspeed")):
            continue
        if name in _GLOBALLY_LOADED:
            # Python loads a library with local symbols; DeepSpeed loads this one with global symbols
            ctypes.CDLL(str(library), mode=os.RTLD_GLOBAL)
        # in a release without this table, DeepSpeed loads the op itself
        getattr(builder, "_loaded_ops", {})[name] = _load_extension(name, library)


def _load_extension(name: str, library: Path) -> ModuleType:
    spec = spec_from_file_location(name, library)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _check_device(name: str, device: str) -> None:
    """Raise LibraryError if DeepSpeed would build the op *name* differently here and where it is used."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        # flags and architectures follow the visible GPUs, so the ranks would build it again
        raise NativeLibraryError(
            f"DeepSpeed op {name} can't be built here, because DeepSpeed compiles it for the GPUs of "
            "this machine, and there are none. The first run on a machine with a GPU builds it; or "
            f"install DeepSpeed with the op: DS_BUILD_{_BUILD_VARIABLES[name]}=1 "
            "TORCH_CUDA_ARCH_LIST='9.0' pip install --no-build-isolation deepspeed (the list: your "
            "GPUs' compute capabilities; it needs nvcc)"
        )


def _load(builder: Any, name: str) -> None:
    # in a release without this table (see preload_ops) ranks run ninja, which would rebuild for other flags
    flags = _without_debug_info() if hasattr(builder, "_loaded_ops") else nullcontext()
    try:
        with flags:
            builder.load(verbose=False)
    except RuntimeError as error:
        if name == "async_io" and not builder.is_compatible():
            # DeepSpeed: "not being compatible due to hardware/software issue"
            raise NativeLibraryError(f"libaio or its header is missing: {INSTALL_LIBAIO}") from error
        raise


@contextmanager
def _without_debug_info() -> Iterator[None]:
    """Make torch's builder omit -g, a flag of DeepSpeed that takes a third of the build time."""
    from torch.utils import cpp_extension

    load: Any = cpp_extension.load

    def lean(*args: Any, extra_cflags: Sequence[str] = (), **rest: Any) -> Any:
        return load(*args, extra_cflags=[flag for flag in extra_cflags if flag != "-g"], **rest)

    cpp_extension.load = lean
    try:
        yield
    finally:
        cpp_extension.load = load


def _library_file(folder: Path, name: str) -> Path:
    return folder / name / f"{name}.so"


def _is_preinstalled(name: str, deepspeed: str) -> bool:
    """True if the package in the folder *deepspeed* was installed with the op *name* (``DS_BUILD_OPS``).

    Then nothing is built. An empty *deepspeed* means that there is no such package.
    """
    return bool(deepspeed) and any(Path(deepspeed).glob(f"ops/**/{name}_op*.so"))


def clear_stale_locks(folder: Path) -> list[Path]:
    """Remove build locks under *folder* that no process holds; return them.

    torch's builder waits for a lock file without a timeout, and a killed build leaves its lock behind. The
    holder keeps the file open until just before it removes it, and raises if it is gone by then: a file is
    stale if no process has it open, and still none a moment later.
    """
    stale = _unlocked_files(folder)
    if stale:
        time.sleep(_LOCK_RELEASE_S)
        stale &= _unlocked_files(folder)
    for lock in stale:
        lock.unlink(missing_ok=True)
    return sorted(stale)


def _unlocked_files(folder: Path) -> set[Path]:
    locks, held = set(folder.glob("*/lock")), _open_files()
    return {lock for lock in locks if lock.resolve() not in held}


def _open_files() -> set[Path]:
    files = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        # closed in the meantime, or another user's process
        with suppress(OSError):
            files.add(link.readlink())
    return files

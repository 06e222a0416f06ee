"""Builds and loads the counting allocator: exact bytes of torch's CPU tensors."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
from pathlib import Path

import torch
from torch.utils import cpp_extension

from distbench.env import cache_folder, compiler
from distbench.metrics.base import Absent

_SOURCE = Path(__file__).with_name("counting_allocator.cpp")

_NO_COMPILER = "exact bytes on a CPU need a C++ compiler (g++), and none is on the path"


def library_file() -> Path:
    """Return where the built library stands: one for each source and version of torch."""
    key = hashlib.sha256(_SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:12]
    return cache_folder() / "allocator" / f"counting_allocator-{key}.so"


def build() -> None:
    """Build the library unless it stands already.

    Raises:
        Absent: there is no C++ compiler, or it failed.
    """
    target = library_file()
    if target.is_file():
        return
    cxx = compiler()
    if cxx is None:
        raise Absent(_NO_COMPILER)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_suffix(f".{os.getpid()}.so")
    command = [cxx, "-O2", "-shared", "-fPIC", "-std=c++20", str(_SOURCE), "-o", str(aside)]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    command += [f"-I{folder}" for folder in cpp_extension.include_paths()]
    command += [f"-L{folder}" for folder in cpp_extension.library_paths()] + ["-lc10"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Absent(f"the counting allocator could not be built: {done.stderr[-2000:]}")
    aside.replace(target)


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the loaded library, or None if it was not built."""
    if not library_file().is_file():
        return None
    loaded = ctypes.CDLL(str(library_file()))
    loaded.distbench_current.restype = ctypes.c_int64
    loaded.distbench_peak.restype = ctypes.c_int64
    return loaded


def why_not() -> str:
    """Return why there is no library."""
    if compiler() is None:
        return _NO_COMPILER
    return "the counting allocator was not built; see the log of the run's preparation"

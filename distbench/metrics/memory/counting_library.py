"""The counting CPU allocator as a library.

Imports no torch: the ranks of a script install it while they import torch.
"""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path

from distbench.system.cache import cache_folder

SOURCE = Path(__file__).with_name("counting_allocator.cpp")

_installed: list[ctypes.CDLL] = []


def library_file(torch_version: str) -> Path:
    """Path of the built library: one per source and version of torch."""
    key = hashlib.sha256(SOURCE.read_bytes() + torch_version.encode()).hexdigest()[:12]
    return cache_folder() / "allocator" / f"counting_allocator-{key}.so"


def install(torch_version: str) -> None:
    """Count from now on, if the library was built; tensors from before are not counted."""
    file = library_file(torch_version)
    if _installed or not file.is_file():
        return
    loaded = ctypes.CDLL(str(file))
    loaded.distbench_current.restype = loaded.distbench_peak.restype = ctypes.c_int64
    loaded.distbench_install()
    _installed.append(loaded)


def installed() -> ctypes.CDLL | None:
    """The library that counts in this process; None: none does."""
    return _installed[0] if _installed else None

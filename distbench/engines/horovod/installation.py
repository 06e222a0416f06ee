"""Horovod of this Python environment, or one of distbench's own that is built for its torch in the cache."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys
import sysconfig
from functools import partial
from pathlib import Path

from distbench.engines.horovod.build import VERSION, build_into
from distbench.strategies.base import UnsupportedCase
from distbench.system import build_cache
from distbench.system.cache import cache_folder
from distbench.system.files import slug
from distbench.system.machine import is_installed

_LIBRARY = f"horovod/torch/mpi_lib_v2{sysconfig.get_config_var('EXT_SUFFIX')}"


def ensure_horovod() -> list[str]:
    """Build Horovod, unless it is installed or was built before; return notes for the user.

    Raises:
        UnsupportedCase: this machine lacks what the build needs, or the installed one lacks PyTorch.
        NativeLibraryError: it can't be downloaded or compiled, or the library can't be loaded.
    """
    # the libraries link to it
    import torch  # noqa: F401

    if is_installed("horovod"):
        _check_installed()
        return []
    folder = own_folder()
    return build_cache.ensure_built(folder / _LIBRARY, partial(build_into, folder), outputs=folder)


def use_horovod() -> None:
    """Let this process import Horovod."""
    if not is_installed("horovod"):
        sys.path.append(str(own_folder()))


def own_folder() -> Path:
    """Folder of the Horovod that distbench builds for this Python and torch."""
    python, torch = platform.python_version(), importlib.metadata.version("torch")
    name = f"horovod-{VERSION}-python-{python}-torch-{torch}-{platform.machine()}"
    return cache_folder() / "horovod" / slug(name)


def _check_installed() -> None:
    found = importlib.util.find_spec("horovod")
    places = [Path(place) for place in (found and found.submodule_search_locations) or ()]
    libraries = [file for place in places for file in place.glob("torch/mpi_lib_v2*.so")]
    why = "it was built without PyTorch"
    if libraries and not (why := build_cache.load_error(libraries[0]) or ""):
        return
    raise UnsupportedCase(
        f"the installed horovod can't be used: {why}; reinstall it with HOROVOD_WITH_PYTORCH=1 and "
        "HOROVOD_WITH_GLOO=1, or uninstall it (pip uninstall horovod), and distbench builds its own"
    )

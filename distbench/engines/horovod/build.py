"""Build Horovod from its sources with pip.

The last release is older than torch 2.1, whose headers need C++17, and contains a gloo that CMake 4 refuses.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from distbench.core.text import compiler_error_line, one_line
from distbench.strategies.base import UnsupportedCase
from distbench.system.build_cache import NativeLibraryError
from distbench.system.cpus import core_count
from distbench.system.files import sha256_bounded
from distbench.system.machine import cxx_compiler, is_installed, search_path

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
_MOST_BYTES = 1 << 25
_TOOLS = ("cmake>=3.13,<4", "ninja", "setuptools", "wheel", "packaging")
_IMPORTED = {"cloudpickle": "cloudpickle", "packaging": "packaging", "psutil": "psutil", "yaml": "pyyaml"}
"""Module that ``horovod.torch`` or its rendezvous imports -> distribution."""
_SWITCHES = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_CPU_OPERATIONS": "GLOO",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "CMAKE_GENERATOR": "Ninja",
}
_EDITS = (
    ("CMakeLists.txt", "CXX_STANDARD 14", "CXX_STANDARD 17"),
    ("horovod/torch/CMakeLists.txt", "CXX_STANDARD 14", "CXX_STANDARD 17"),
    # a folder is no regular expression: with a + in its name, the library would be put elsewhere
    (
        "cmake/Utilities.cmake",
        'string(REGEX REPLACE "${PROJECT_SOURCE_DIR}(/)?" "" SUB_FOLDER "${CMAKE_CURRENT_SOURCE_DIR}")',
        'file(RELATIVE_PATH SUB_FOLDER "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")',
    ),
    # ninja takes it for a target; make would be one more thing to install
    ("setup.py", "make_args.append('VERBOSE=1')", "pass"),
)
"""Edits of the sources: file, text and its replacement."""
_REMEDY = "use engine: native, or install a horovod for this torch"


def build_into(folder: Path, sha256: str = SHA256) -> None:
    """Build Horovod beside *folder*, and rename it to *folder* once it is whole. One process at a time.

    Args:
        sha256: SHA-256 that its sources must have.

    Raises:
        UnsupportedCase: there is no C++ compiler.
        NativeLibraryError: the sources can't be downloaded or compiled.
    """
    if cxx_compiler() is None:
        raise UnsupportedCase(
            f"engine horovod builds Horovod {VERSION}, but no C++ compiler was found; install one (Debian: "
            "apt-get install g++), or set CXX"
        )
    place = folder.with_name(f".{folder.name}.building")
    # of a build that was killed, or whose library can't be loaded
    for old in (place, folder):
        shutil.rmtree(old, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        tools, made = place / "tools", place / "made"
        variables = _variables(tools)
        _run_pip("download its tools", ["install", "--target", str(tools), *_TOOLS], variables)
        lacking = [name for module, name in _IMPORTED.items() if not is_installed(module)]
        if lacking:
            what = f"download {', '.join(lacking)}"
            _run_pip(what, ["install", "--no-deps", "--target", str(made), *lacking], variables)
        sources = _sources(place, sha256, variables)
        options = ["--no-build-isolation", "--no-deps", "--no-cache-dir"]
        _run_pip("build it", ["install", *options, "--target", str(made), str(sources)], variables)
        made.rename(folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _variables(tools: Path) -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        **_SWITCHES,
        "CMAKE_BUILD_PARALLEL_LEVEL": str(core_count()),
        # otherwise its setup.py asks for 8 jobs, whatever the machine
        "MAKEFLAGS": f"-j{core_count()}",
        "PATH": f"{tools / 'bin'}{os.pathsep}{search_path()}",
        "PYTHONPATH": os.pathsep.join([str(tools), *([inherited] if inherited else [])]),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
    }


def _sources(place: Path, sha256: str, variables: Mapping[str, str]) -> Path:
    """Download the sources, and make them build with torch 2; return their folder.

    Raises:
        NativeLibraryError: they can't be downloaded, or are not those that distbench knows.
    """
    wanted = place / "horovod.txt"
    # pip itself compares the hash before it runs any code of the archive
    wanted.write_text(f"horovod=={VERSION} --hash=sha256:{sha256}\n")
    plain = ["--no-deps", "--no-build-isolation", "--no-binary", "horovod"]
    _run_pip("download it", ["download", *plain, "--dest", str(place), "-r", str(wanted)], variables)
    archive = place / f"horovod-{VERSION}.tar.gz"
    found = sha256_bounded(archive, _MOST_BYTES)
    if found != sha256:
        raise NativeLibraryError(
            f"Horovod {VERSION}: expected sources with the SHA-256 {sha256}, found {found}; set pip's index "
            "to one with the release of pypi.org"
        )
    with tarfile.open(archive) as packed:
        packed.extractall(place, filter="data")
    sources = place / f"horovod-{VERSION}"
    for name, old, new in _EDITS:
        file = sources / name
        file.write_text(file.read_text().replace(old, new))
    return sources


def _run_pip(what: str, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    """Run pip with *arguments*; its output goes to the log of the preparation.

    Raises:
        NativeLibraryError: it failed to do *what*; the message has the line with its error.
    """
    command = [sys.executable, "-m", "pip", *arguments]
    ran = subprocess.run(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    sys.stdout.write(ran.stdout)
    if ran.returncode:
        raise NativeLibraryError(
            f"pip can't {what} (Horovod {VERSION}): {_failure_line(ran.stdout)}; {_REMEDY}"
        )


def _failure_line(output: str) -> str:
    """Line of a compiler's error in *output*, otherwise pip's own, otherwise the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    compiled = [line for line in lines if not line.lower().startswith("error: ")]
    line = compiler_error_line("\n".join(["", *compiled])).removeprefix(": ")
    if "\n" not in line and line:
        return one_line(line)
    errors = [each for each in lines if each.startswith(("CMake Error", "ERROR: "))]
    return one_line((errors or lines[-1:] or ["no output"])[0].removeprefix("ERROR: "))

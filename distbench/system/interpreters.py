"""Other Python environments for trials: interpreter, packages and environment variables.

They run this distbench, whatever version they contain, and need only what ranks import.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import distbench
from distbench.system.cache import cache_folder
from distbench.system.machine import ops_folder

MIN_PYTHON = (3, 11)
"""Oldest Python that can run distbench."""
REQUIRED_PACKAGES = {
    "numpy": "numpy",
    "psutil": "psutil",
    "pynvml": "nvidia-ml-py",
    "safetensors": "safetensors",
    "torch": "torch",
}
"""Modules that all ranks import -> the distributions that provide them."""

_LIMIT_S = 120.0
_EXPECTED = "the folder of a virtual environment or its python"
_REMAKE_HINT = "recreate the environment on this machine, or give another one"
# must run on any Python up to its check of the version
_PROBE_CODE = f"""
import json, sys
told = {{"python": "%d.%d.%d" % sys.version_info[:3], "prefix": sys.prefix}}
if sys.version_info >= {MIN_PYTHON}:
    from distbench.core.machine import package_folder
    from distbench.system import machine
    told["packages"] = machine.package_versions()
    told["deepspeed"] = package_folder("deepspeed")
    told["missing"] = [name for name in {list(REQUIRED_PACKAGES)} if not machine.is_installed(name)]
print(json.dumps(told))
"""


class InterpreterError(Exception):
    """A Python that can't run trials; the message has the reason and what to do."""


@dataclass(frozen=True)
class Interpreter:
    """A Python that can run trials."""

    executable: str
    """Path of the executable."""
    prefix: str
    """Folder of its environment."""
    version: str
    packages: Mapping[str, str]
    """Relevant installed distributions with their versions."""
    deepspeed: str
    """Folder of DeepSpeed's package; empty: it is not installed."""

    def environment(self, device: str, inherited: str | None = None) -> dict[str, str]:
        """Environment variables for processes in it that compute on *device*.

        Args:
            inherited: ``PYTHONPATH`` to extend; None: that of this process.
        """
        return {
            "PYTHONPATH": make_python_path(inherited),
            # strategies name the folder of this process, where the two would rebuild each other's ops
            "TORCH_EXTENSIONS_DIR": str(ops_folder(self.prefix, self.packages, device)),
        }


def find_python(path: Path) -> Path | None:
    """Python at *path*, an executable or a virtual environment; None: it is neither."""
    inside = path / "bin" / "python"
    if inside.is_file():
        return inside.absolute()
    return path.absolute() if path.is_file() and os.access(path, os.X_OK) else None


@functools.cache
def inspect_interpreter(path: Path) -> Interpreter:
    """Inspect the Python at *path*, an executable or the folder of a virtual environment.

    Raises:
        InterpreterError: there is none, or it can't run trials.
    """
    python = find_python(path)
    if python is None:
        raise InterpreterError(_missing_text(path))
    answer = _query(python)
    version = ".".join(map(str, answer["python"]))
    if answer["python"] < MIN_PYTHON:
        raise InterpreterError(
            f"it is Python {version}; distbench needs {'.'.join(map(str, MIN_PYTHON))} or newer; create "
            "the environment with such a Python"
        )
    if os.path.realpath(answer["prefix"]) == os.path.realpath(sys.prefix):
        raise InterpreterError(
            "this is distbench's own environment, which is called current; name another one"
        )
    if missing := [REQUIRED_PACKAGES[name] for name in answer["missing"]]:
        command = shlex.join([str(python), "-m", "pip", "install", *missing])
        raise InterpreterError(
            f"it does not contain {', '.join(missing)}, which trials need; install with: {command}"
        )
    return Interpreter(str(python), answer["prefix"], version, answer["packages"], answer["deepspeed"])


def _missing_text(path: Path) -> str:
    inside = path / "bin" / "python"
    link = next((each for each in (path, inside) if each.is_symlink() and not each.exists()), None)
    if link:
        return f"{link} is a link to {link.readlink()}, which does not exist on this machine; {_REMAKE_HINT}"
    if not path.exists():
        return f"{path} does not exist; create an environment there, or give {_EXPECTED}"
    why = "has no bin/python" if path.is_dir() else "is not a program"
    return f"{path} {why}; give {_EXPECTED}"


def _query(python: Path) -> dict[str, Any]:
    """Facts that *python* reports about itself."""
    try:
        done = subprocess.run(
            [python, "-c", _PROBE_CODE],
            env={**os.environ, "PYTHONPATH": make_python_path()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=True,
        )
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return {**answer, "python": tuple(map(int, answer["python"].split(".")))}
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no output"])[-1]
        why = f"{python} does not work: it exited with code {error.returncode}: {last}; {_REMAKE_HINT}"
        raise InterpreterError(why) from error
    except subprocess.TimeoutExpired as error:
        raise InterpreterError(f"{python} did not answer within {_LIMIT_S:g} s; {_REMAKE_HINT}") from error
    except OSError as error:
        raise InterpreterError(f"can't start {python}: {_start_error_text(error)}; {_REMAKE_HINT}") from error
    except (ValueError, LookupError, TypeError) as error:
        why = f"{python} is not a Python interpreter (it ignored -c); give {_EXPECTED}"
        raise InterpreterError(why) from error


def _start_error_text(error: OSError) -> str:
    """Reason why an existing file is not a program."""
    if error.errno == errno.ENOEXEC:
        return f"it is not a program for this platform ({platform.system()}, {platform.machine()})"
    if error.errno == errno.ENOENT:
        return "the program in its first line, or its loader, does not exist"
    return str(error.strerror)


def make_python_path(inherited: str | None = None) -> str:
    """Link this distbench into the cache; return ``PYTHONPATH`` with that folder before *inherited*.

    The other interpreter then finds nothing else that lies beside this distbench.

    Args:
        inherited: ``PYTHONPATH`` to extend; None: that of this process.
    """
    package = Path(distbench.__file__).resolve().parent
    # one for each checkout: several may share the cache
    folder = cache_folder() / "harness" / hashlib.sha256(str(package).encode()).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        (folder / package.name).symlink_to(package, target_is_directory=True)
    rest = os.environ.get("PYTHONPATH", "") if inherited is None else inherited
    return os.pathsep.join([str(folder), *filter(None, [rest])])

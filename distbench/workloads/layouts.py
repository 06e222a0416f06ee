"""Names and sizes of a model's modules, for processes without torch.

Another process looks them up, which takes seconds, so distbench's cache keeps the answer.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from distbench.core.case import PluginChoice
from distbench.core.errors import InfrastructureError, RecordError
from distbench.core.serialization import decode
from distbench.system.cache import cache_folder
from distbench.system.files import read_bounded, write_atomic
from distbench.system.interpreters import make_python_path
from distbench.system.machine import package_versions
from distbench.workloads.module_calls import FlatModuleCall

_FORMAT = 3
"""Format of the files in the cache."""
_READER = "distbench.workloads._layout_reader"
_TIMEOUT_S = 300.0
_MAX_REASON_LENGTH = 300
"""Maximum characters of a reason."""
_MAX_BYTES = 1 << 26


@dataclass(frozen=True)
class ModelLayout:
    """Names and sizes of a model's modules; names of layers contain their numbers."""

    parameters: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Shape of each parameter, a tied one under its first name."""
    tied: dict[str, str] = field(default_factory=dict)
    """Other name of a tied parameter -> its first one."""
    linear: tuple[str, ...] = ()
    """Plain linear layers."""
    embeddings: tuple[str, ...] = ()
    """Plain embeddings, without special rows."""
    layers: tuple[str, ...] = ()
    """Layers in the order in which they run."""
    tensor_plan: dict[str, str] = field(default_factory=dict)
    """Module (``*`` stands for any number) -> its style of split, in transformers' terms."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes that the number of devices must divide besides those of layers, by option."""
    options: dict[str, int] = field(default_factory=dict)
    """Option that sets a size of layers -> that size."""
    before: tuple[str, ...] = ()
    """In a pipeline, the modules with parameters before the layers."""
    after: tuple[str, ...] = ()
    """In a pipeline, the modules with parameters after the layers."""
    between: tuple[int, ...] = ()
    """Shape of the tensor that passes from a layer to the next, for one row."""
    unsplit: str = ""
    """Reason why the model can't be split inside its layers; empty: its plan splits it."""
    uncut: str = ""
    """Reason why it can't be cut between its layers; empty: its plan cuts it."""
    sequence: str = ""
    """Reason why tensors between its layers can't be split by position; empty: they can."""
    frozen: tuple[str, ...] = ()
    """Parameters that are not trained."""
    calls: tuple[FlatModuleCall, ...] = ()
    """Calls of its modules by a forward pass; empty: there was none."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of the parameter *name*, which may be tied."""
        return self.parameters[self.tied.get(name, name)]


@dataclass(frozen=True)
class WorkloadWithLayout(PluginChoice):
    """A workload whose model ranks have read."""

    layout: ModelLayout = field(default_factory=ModelLayout)


def model_layout(workload: PluginChoice) -> ModelLayout:
    """Layout of the model of *workload*; if it can't be read, the reason takes the place of its plans."""
    # not sorted: the order of a plan matters
    return _read(json.dumps(asdict(workload)))


@functools.cache
def _read(request: str) -> ModelLayout:
    if "torch" in sys.modules:
        # a rank: it has torch, and is about to build the model anyway
        layout: ModelLayout = importlib.import_module(_READER).read(request)
        return layout
    file = _cache_file(request)
    if file and (known := _read_cached(file)):
        return known
    answer, reason = _ask_process(request)
    if reason:
        return ModelLayout(unsplit=reason, uncut=reason)
    if file:
        # a cache that can't be written costs seconds, but does not break the plan
        with suppress(OSError, InfrastructureError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, answer)
    return decode(ModelLayout, json.loads(answer), _READER)


def _cache_file(request: str) -> Path | None:
    """Cache file of the answer; None: the answer depends on files that may change."""
    options: Mapping[str, Any] = json.loads(request)["options"]
    if "model" in options or any(isinstance(each, str) and Path(each).exists() for each in options.values()):
        return None
    decides = json.dumps([_FORMAT, request, package_versions()], sort_keys=True)
    return cache_folder() / "layouts" / f"{hashlib.sha256(decides.encode()).hexdigest()[:16]}.json"


def _read_cached(file: Path) -> ModelLayout | None:
    with suppress(OSError, ValueError, RecordError):
        return decode(ModelLayout, json.loads(read_bounded(file, _MAX_BYTES)), str(file))
    return None


def _ask_process(request: str) -> tuple[str, str]:
    """Read the layout in another process: its JSON, and the reason if there is none."""
    environment = {**os.environ, "PYTHONPATH": make_python_path(None)}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", _READER],
            input=request,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"can't list the modules of the model: {error}"
    *_, last = done.stdout.strip().splitlines() or [""]
    if done.returncode == 0:
        return last, ""
    *_, last_line = done.stderr.strip().splitlines() or [""]
    return "", f"can't list the modules of the model: {last_line[:_MAX_REASON_LENGTH]}"

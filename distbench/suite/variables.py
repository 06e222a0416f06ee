"""Environment variables of the ranks: the section ``env`` of a suite."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from distbench.core.suite_mistakes import KeyPath, Problem
from distbench.system.rank_variables import is_rank_variable

ENV_KEY = "env"
VARIABLE_NAME = "[A-Za-z_][A-Za-z0-9_]*"
"""Pattern of the names, as POSIX has them."""

_SECRET = re.compile(r"(?i).*(TOKEN|SECRET|PASSWORD|PASSWD|(?<!BY)PASS|CREDENTIALS?|APIKEY|_KEY)")
# Linux refuses a variable of 128 KiB
_MAX_BYTES = 1 << 16

_THREADS = "use threads, the intra-op threads of a rank, which may also list values: threads: [1, 2]"
_GPUS = "use device and world_sizes, or set it for the whole command"
_PYTHON = "use environment, which names another Python environment of environments"
_TF32 = "use precision: {matmul: high} or highest, which every rank sets itself"
_OWN = "distbench sets it for its ranks; leave it out"
_OF_LAUNCHER = "distbench places the ranks; use world_sizes and launcher"
_RESERVED = {
    "OMP_NUM_THREADS": _THREADS,
    "MKL_NUM_THREADS": _THREADS,
    "CUDA_VISIBLE_DEVICES": _GPUS,
    "CUDA_DEVICE_ORDER": _GPUS,
    "NVIDIA_VISIBLE_DEVICES": _GPUS,
    "HIP_VISIBLE_DEVICES": _GPUS,
    "ROCR_VISIBLE_DEVICES": _GPUS,
    "PATH": _PYTHON,
    "VIRTUAL_ENV": _PYTHON,
    "DS_ACCELERATOR": "use device: cpu or cuda",
    "NVIDIA_TF32_OVERRIDE": _TF32,
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": _TF32,
    "CUBLAS_WORKSPACE_CONFIG": _OWN,
    "DEEPSPEED_LOG_LEVEL": _OWN,
    "PYTORCH_NVML_BASED_CUDA_CHECK": _OWN,
    "TORCH_EXTENSIONS_DIR": _OWN,
    "TORCHINDUCTOR_CACHE_DIR": _OWN,
    "TORCHINDUCTOR_COMPILE_THREADS": _OWN,
}
"""Variables that have a value already -> what to do in place of setting them."""


def variable_text(value: Any) -> Any:
    """*value* of a variable as text, if it is a whole number; otherwise as it is."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def variable_texts(raw: Any) -> Any:
    """The section *raw* with its numbers as text; what is no mapping is left to ``check_variables``."""
    return {key: variable_text(value) for key, value in raw.items()} if isinstance(raw, dict) else raw


def check_variables(raw: Any, path: KeyPath) -> tuple[dict[str, str] | None, list[Problem]]:
    """Variables of the section *raw* at *path*, or None and all its mistakes."""
    if not isinstance(raw, dict):
        return None, [
            Problem(path, "expected a mapping of variables to values, such as {NCCL_ALGO: Ring}", raw)
        ]
    texts: Mapping[str, Any] = variable_texts(raw)
    wrong = [
        Problem((*path, name), problem, raw[name])
        for name, value in texts.items()
        if (problem := _name_problem(name) or _value_problem(name, value))
    ]
    # sorted: the order of variables means nothing
    return (None, wrong) if wrong else ({name: texts[name] for name in sorted(texts)}, [])


def _name_problem(name: str) -> str | None:
    if not re.fullmatch(VARIABLE_NAME, name):
        return "no name of a variable; use letters, digits and underscores, and no digit first"
    if name in _RESERVED:
        return f"not here: {_RESERVED[name]}"
    if name.startswith("PYTHON"):
        return f"not here: Python reads it as it starts; {_PYTHON}, or set it for the whole command"
    if name.startswith("DISTBENCH_"):
        return "not here: it is distbench's own; set it for the whole command"
    if is_rank_variable(name):
        return f"not here: {_OF_LAUNCHER}"
    if _SECRET.fullmatch(name):
        return "not here: records and pages contain the variables of a case; set it for the whole command"
    return None


def _value_problem(name: str, value: Any) -> str | None:
    if value is None:
        both = f"env: [{{}}, {{{name}: VALUE}}]"
        return f"expected text or a whole number; for cases with and without it: {both}"
    if isinstance(value, bool):
        return f'expected text or a whole number; write {int(value)}, or "{str(value).lower()}" in quotes'
    if isinstance(value, float):
        return f'expected text or a whole number; write "{value}" in quotes, in the digits that are meant'
    if not isinstance(value, str):
        return "expected text or a whole number, or a list of them"
    if not value.isprintable():
        return "contains a line break or another control character, which no launch command can repeat"
    if len(value.encode(errors="replace")) > _MAX_BYTES:
        return f"no value of a variable; use at most {_MAX_BYTES:,} bytes"
    return None

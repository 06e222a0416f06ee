"""Why a source can't feed a workload, in words that several sources share."""

from __future__ import annotations

import os
from pathlib import Path

from distbench.data.base import Kind, Shape

_SOURCES: dict[Kind, str] = {"tokens": "text, tokens or synthetic", "features": "digits"}


def kind_problem(name: str, kind: Kind, shape: Shape) -> str | None:
    """Return the problem that source *name* gives *kind* where *shape* wants the other, or None."""
    if kind == shape.kind:
        return None
    return f"{name} gives {kind} and the workload wants {shape.kind}; set data to {_SOURCES[shape.kind]}"


def file_problem(path: str) -> str | None:
    """Return why the file at *path* can't be read or holds nothing, or None."""
    file = Path(path)
    if not file.exists():
        return f"path = {path!r}: no such file (looked in {Path.cwd()})"
    if not file.is_file():
        return f"path = {path!r}: not a file"
    if not os.access(file, os.R_OK):
        return f"path = {path!r}: no permission to read it"
    if file.stat().st_size == 0:
        return f"path = {path!r}: the file is empty"
    return None


def tokens_problem(what: str, shape: Shape, available: int, largest: int) -> str | None:
    """Return why *available* tokens with ids up to *largest* are too few or too many, or None."""
    if available <= shape.length:
        return f"{what} has {available} tokens; a sample of length {shape.length} needs {shape.length + 1}"
    if largest >= shape.classes:
        return (
            f"{what} has token ids up to {largest}, so it needs a vocabulary of {largest + 1}; "
            f"vocab_size (classes) = {shape.classes}"
        )
    return None

"""Errors of a loss function that uses a module other than by calling it."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Sequence
from types import FrameType

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from distbench.strategies.base import UnsupportedCase
from distbench.workloads.weights import plain_name

_CALLS = ("__call__", "_wrapped_call_impl", "_call_impl", "forward")
_MISSING = re.compile(r"object has no attribute '(\w+)'")
_LIBRARIES = ("distbench", "torch", "deepspeed")


def explain_error(error: Exception, module: nn.Module) -> UnsupportedCase | None:
    """Reason of *error*, if a loss function used parts of *module* outside of its forward pass.

    A wrapper has other attributes than the module inside, and sharded parameters are full only while the
    wrapper is called. None: the error is in the forward pass, or elsewhere in the function.
    """
    if not _is_wrapped(module) or isinstance(error, torch.OutOfMemoryError | MemoryError):
        return None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    called = [frame.f_locals.get("self") if frame.f_code.co_name in _CALLS else None for frame in frames]
    if any(owner is module for owner in called):
        return None
    parts = {id(part) for part in module.modules()}
    inside = next((i for i, owner in enumerate(called) if id(owner) in parts), len(frames))
    own = [frame for frame in frames[:inside] if not _is_of_library(frame)]
    used = _missing_attribute(error, module) or _named_parts(own, module)
    if not own or not (used or inside < len(frames)):
        return None
    place = f"{own[-1].f_code.co_filename.rpartition('/')[2]}:{own[-1].f_lineno}"
    what = " and ".join(used) or "a part"
    return UnsupportedCase(
        f"the loss function uses {what} of the module in addition to calling it ({place}), but a "
        "strategy that wraps or shards the module gathers its parameters only during the call; compute "
        "the loss, or the values that the function needs, in the module's forward, and only call "
        "module(...)"
    )


def _missing_attribute(error: Exception, module: nn.Module) -> list[str]:
    """Name of the attribute that, by *error*, *module* lacks and the module inside has."""
    wrapped = getattr(module, "module", None)
    missing = _MISSING.search(str(error)) if isinstance(error, AttributeError) else None
    return [missing[1]] if missing and wrapped is not None and hasattr(wrapped, missing[1]) else []


def _is_wrapped(module: nn.Module) -> bool:
    """True if *module* is a wrapper, or has parameters that are full only while it is called."""
    is_wrapper = isinstance(getattr(module, "module", None), nn.Module)
    return is_wrapper or any(isinstance(p, DTensor) or hasattr(p, "ds_id") for p in module.parameters())


def _named_parts(frames: Sequence[FrameType], module: nn.Module) -> list[str]:
    """Parts of *module* named in the line of *frames* that raised."""
    names = {plain_name(name).partition(".")[0] for name, _ in module.named_modules() if name} - {"module"}
    lines = [linecache.getline(frame.f_code.co_filename, frame.f_lineno) for frame in frames]
    return sorted(name for name in names if any(re.search(rf"\.{name}\b", line) for line in lines))


def _is_of_library(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _LIBRARIES

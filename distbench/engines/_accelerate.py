"""Accelerate in a rank, for the frameworks that use it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch.optim.lr_scheduler import LambdaLR

from distbench.core.errors import Mismatch
from distbench.strategies.base import RankContext
from distbench.strategies.torch_engine import optimizer

USE_DEEPSPEED = "ACCELERATE_USE_DEEPSPEED"
_SWITCHES = (USE_DEEPSPEED, "ACCELERATE_USE_FSDP")
"""Variables that an earlier Accelerator of this process has set for the next one."""


def forget_accelerator() -> None:
    """Forget the Accelerator of an earlier training of this process, which its next one would continue."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    for name in _SWITCHES:
        os.environ.pop(name, None)


def check_placement(framework: str, accelerator: Accelerator, context: RankContext) -> None:
    """Raise Mismatch unless *accelerator* is in the process group, and on the device of the rank.

    Outside of the group every rank would train alone.
    """
    expected = context.world_size, _device_name(context.device)
    found = accelerator.num_processes, _device_name(accelerator.device)
    if found != expected:
        raise Mismatch(
            f"{framework}: expected {expected[0]} processes, with rank {context.rank} on {expected[1]}; "
            f"found {found[0]}, with it on {found[1]}"
        )


def replace_step(engine: Any, instead: Callable[..., None]) -> Callable[[], None]:
    """Make Accelerate call *instead* of the ``step`` of DeepSpeed's *engine*; return that ``step``.

    Accelerate calls it at the end of the last backward pass, when gradients have not been read yet.
    """
    step: Callable[[], None] = engine.step
    engine.step = instead
    return step


def add_scheduler(engine: Any, context: RankContext) -> LambdaLR | None:
    """Let DeepSpeed's *engine* step the schedule of the case, and return it; None: the rate is constant.

    Accelerate would step it once per process.
    """
    scheduler = optimizer.make_scheduler(engine.basic_optimizer, context.case.optimizer)
    if scheduler:
        engine.lr_scheduler = scheduler
    return scheduler


def _device_name(device: torch.device) -> str:
    """Name of *device*; Accelerate numbers CPUs, of which there is one."""
    return device.type if device.type == "cpu" else str(device)

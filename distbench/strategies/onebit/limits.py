"""Why DeepSpeed's 1-bit optimizers can't train a case, found before launch. Without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distbench.core.case import Case, Precision
from distbench.core.machine import Machine
from distbench.strategies._deepspeed.releases import LAST, REMOVAL, REMOVED_IN, release
from distbench.strategies._unused import unused_option
from distbench.system.machine import CUPY

if TYPE_CHECKING:
    from distbench.strategies.onebit import OneBit


def problem(onebit: OneBit, case: Case, machine: Machine) -> str | None:
    """Why *case* can't be trained with *onebit* on *machine*, or None; its tools aside."""
    return _of_options(onebit) or _of_case(onebit, case) or _of_machine(case, machine)


def _of_options(onebit: OneBit) -> str | None:
    steps = onebit.local_steps
    if steps & (steps - 1):
        lower = 1 << (steps.bit_length() - 1)
        return f"local_steps = {steps}: the interval is doubled, so use a power of 2: {lower} or {2 * lower}"
    own = onebit.algorithm == "zero_one_adam", "algorithm: zero_one_adam"
    return unused_option(onebit, type(onebit)(), {"var_update_scaler": own, "local_steps": own})


def _of_case(onebit: OneBit, case: Case) -> str | None:
    asked, optimizer = f"algorithm = {onebit.algorithm}", "lamb" if onebit.algorithm == "lamb" else "adamw"
    if case.optimizer.name != optimizer:
        return (
            f"{asked} is {optimizer} with compression and can't replace optimizer.name = "
            f"{case.optimizer.name}; use optimizer: {{name: {optimizer}}}"
        )
    if case.world_size == 1:
        return f"{asked}: a single rank has nothing to reduce; use a world size of at least 2"
    if case.precision != Precision():
        return (
            f"{asked} is supported only in fp32 (DeepSpeed has it in fp16 too, which is untested); use "
            "precision: fp32"
        )
    if case.optimizer.clip_grad_norm is not None:
        return (
            f"{asked} with optimizer.clip_grad_norm = {case.optimizer.clip_grad_norm:g}: once gradients are "
            "not reduced, DeepSpeed would clip each rank by the norm of its own; use clip_grad_norm: null"
        )
    return None


def _of_machine(case: Case, machine: Machine) -> str | None:
    version = machine.packages.get("deepspeed")
    if version is not None and release(version) >= REMOVED_IN:
        return (
            f"DeepSpeed {version} does not have 1-bit optimizers; {LAST} was the last version that had them "
            f"({REMOVAL}); choose an environment with it (environments), or ddp: {{powersgd_rank: 4}} here"
        )
    if case.device == "cuda" and not any(name in machine.packages for name in CUPY):
        return (
            "DeepSpeed's 1-bit optimizers pack their bits with cupy, which is not installed; pip install "
            "cupy-cuda12x (or cupy-cuda13x, by the CUDA of torch)"
        )
    return None

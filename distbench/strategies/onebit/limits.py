"""Cases that DeepSpeed's 1-bit optimizers can't train, detected before launch. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distbench.core.case import Case, PrecisionConfig
from distbench.core.machine import Machine, parse_release
from distbench.strategies._deepspeed.releases import (
    FIRST_WITHOUT_ONEBIT,
    LAST_WITH_ONEBIT,
    REMOVAL_ISSUE,
)
from distbench.strategies.requirements import unused_option_problem
from distbench.system.machine import CUPY_DISTRIBUTIONS

if TYPE_CHECKING:
    from distbench.strategies.onebit import OneBit


def onebit_problem(onebit: OneBit, case: Case, machine: Machine) -> str | None:
    """Reason why *case* can't be trained with *onebit* on *machine* (build tools aside); None if it can."""
    return _option_problem(onebit) or _case_problem(onebit, case) or _machine_problem(case, machine)


def _option_problem(onebit: OneBit) -> str | None:
    steps = onebit.local_steps
    if steps & (steps - 1):
        lower = 1 << (steps.bit_length() - 1)
        return (
            f"local_steps = {steps} is not a power of 2, but the interval is doubled; use {lower} or "
            f"{2 * lower}"
        )
    own = onebit.algorithm == "zero_one_adam", "algorithm: zero_one_adam"
    return unused_option_problem(onebit, type(onebit)(), {"var_update_scaler": own, "local_steps": own})


def _case_problem(onebit: OneBit, case: Case) -> str | None:
    asked, optimizer = f"algorithm = {onebit.algorithm}", "lamb" if onebit.algorithm == "lamb" else "adamw"
    if case.optimizer.name != optimizer:
        return (
            f"{asked} compresses {optimizer} and can't replace optimizer.name = {case.optimizer.name}; "
            f"use optimizer: {{name: {optimizer}}}"
        )
    if case.world_size == 1:
        return f"{asked}: a single rank has nothing to reduce; use a world size of at least 2"
    if case.precision != PrecisionConfig():
        return f"{asked} is supported only in fp32 (fp16 is untested); use precision: fp32"
    if case.optimizer.clip_grad_norm is not None:
        return (
            f"{asked} with optimizer.clip_grad_norm = {case.optimizer.clip_grad_norm:g}: as soon as "
            "gradients are not reduced, DeepSpeed would clip each rank by the norm of its local "
            "gradients; use clip_grad_norm: null"
        )
    return None


def _machine_problem(case: Case, machine: Machine) -> str | None:
    version = machine.packages.get("deepspeed")
    if version is not None and parse_release(version) >= FIRST_WITHOUT_ONEBIT:
        return (
            f"DeepSpeed {version} does not have 1-bit optimizers; {LAST_WITH_ONEBIT} was the last "
            f"version that had them ({REMOVAL_ISSUE}); choose an environment with that version "
            "(environments), or ddp: {powersgd_rank: 4} here"
        )
    if case.device == "cuda" and not any(name in machine.packages for name in CUPY_DISTRIBUTIONS):
        return (
            "DeepSpeed's 1-bit optimizers pack their bits with cupy, which is not installed; pip "
            "install cupy-cuda12x (or cupy-cuda13x, for the CUDA version of torch)"
        )
    return None

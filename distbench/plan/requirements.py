"""Check packages, tools, dtypes and memory that a case needs."""

import math
from collections.abc import Iterable, Mapping

from distbench import optimizers
from distbench.core import registry
from distbench.core.case import Case
from distbench.core.dtypes import FLOAT8_ALIGNMENT
from distbench.core.machine import Machine, parse_release
from distbench.data.base import DataSource
from distbench.engines.base import engine_of
from distbench.plan.length_requirements import variable_length_problem
from distbench.plan.memory_capacity import memory_capacity
from distbench.plan.releases import torch_problem
from distbench.strategies.base import Strategy
from distbench.system.machine import install_hint, is_distribution_installed, is_inspected
from distbench.workloads.base import Workload

_AMPERE, _ADA = 8.0, 8.9
"""Compute capabilities from which on GPUs multiply in bf16 and TF32, and in float8."""


def missing_requirement(case: Case, strategy: Strategy, workload: Workload, machine: Machine) -> str | None:
    """Reason why *machine* can't run *case*; None if it can."""
    engine = engine_of(case)
    used = [*workload.packages, *optimizers.entry_of(case.optimizer).packages]
    float8 = [] if case.precision.float8 == "none" else ["torchao"]
    return (
        # first, as no package helps that this torch can't use
        torch_problem(case, strategy, [*used, *float8], machine)
        or _missing_package(strategy.packages, machine, install_hint("train"))
        or _missing_package(used, machine)
        or _missing_package(engine.packages, machine, install_hint(engine.extra) if engine.extra else "")
        or _old_package(
            engine.minimum_releases(strategy), f"engine {case.engine.name} with {case.strategy.name}", machine
        )
        or workload.device_problem(case.device)
        or _compile_problem(case, machine)
        or _loader_problem(case)
        or _dtype_problem(case, machine)
        or variable_length_problem(case, strategy, workload)
        or _float8_problem(case, machine, _tokens_multiple(case, workload))
        or strategy.problem(case, machine)
        or engine.problem(case, strategy)
        or _memory_problem(case, strategy, workload, machine)
    )


def _least_parameters(workload: Workload) -> int | None:
    """Parameters that the model of *workload* has at least; None: unknown without the model."""
    if (known := workload.parameters()) is not None:
        return known
    # biases may come on top
    dimensions = workload.decoder_dimensions
    return dimensions.parameters() if dimensions else None


def _missing_package(packages: Iterable[str], machine: Machine, hint: str = "") -> str | None:
    """Message on the first of *packages* missing on *machine*, with an installation hint; None: none is."""
    absent = [package for package in packages if not _has_package(machine, package)]
    if not absent:
        return None
    return f"{absent[0]} is not installed; install it {hint or f'with: pip install {absent[0]}'}"


def _old_package(minima: Mapping[str, str], user: str, machine: Machine) -> str | None:
    """Message on the first package of *machine* that is older than *minima* for *user*; None: none is."""
    for package, minimum in minima.items():
        version = machine.packages.get(package)
        if version and parse_release(version) < parse_release(minimum):
            return (
                f"{user} needs {package} {minimum} or newer, but {version} is installed; install a newer "
                "one, or use engine: native"
            )
    return None


def _has_package(machine: Machine, package: str) -> bool:
    """True if *machine* has *package*; one that only a plug-in names is looked up in this environment."""
    return package in machine.packages or (not is_inspected(package) and is_distribution_installed(package))


def _compile_problem(case: Case, machine: Machine) -> str | None:
    """Reason why torch.compile can't run as *case* requests on *machine*; None if it can."""
    is_compiled = case.compile != "none" or optimizers.entry_of(case.optimizer).is_compiled
    if not is_compiled or machine.device != "cpu":
        return None
    if case.compile == "reduce-overhead":
        return "compile: reduce-overhead uses CUDA graphs, which do not exist on a CPU; use compile: true"
    if not machine.has_compiler:
        who = "torch.compile" if case.compile != "none" else f"optimizer.name = {case.optimizer.name}"
        return (
            f"{who} needs a C++ compiler, but none was found; install one (Debian: apt-get install "
            "g++), or set CXX"
        )
    return None


def _loader_problem(case: Case) -> str | None:
    """Reason why the loader of *case* can't work as requested; None if it can."""
    if case.loader.pin_memory and case.device == "cpu":
        return "loader.pin_memory is for copies to a GPU, and there is none; use pin_memory: false"
    return None


def _tokens_multiple(case: Case, workload: Workload) -> int:
    """Divisor of the tokens of each micro-batch of *case*."""
    source: DataSource = registry.create_plugin("data", case.data)
    tokens = workload.tokens_per_sample
    return case.batch.micro_batch_size * math.gcd(tokens, source.length_multiple or tokens)


def _dtype_problem(case: Case, machine: Machine) -> str | None:
    """Reason why the GPUs of *machine* can't compute as *case* requests; None: they can, or unknown."""
    precision, capability = case.precision, machine.compute_capability
    if case.device == "cpu" or capability is None or capability >= _AMPERE:
        return None
    found = f"compute capability {_AMPERE} (Ampere) or newer; this machine has {capability}"
    if "bf16" in (precision.compute, precision.reduce, precision.master, precision.optimizer_state):
        return f"bf16 needs GPUs of {found}, which only emulates it; use precision: fp16 or fp32"
    if precision.matmul == "high":
        return f"precision.matmul: high needs GPUs of {found}, which do not support TF32; use matmul: highest"
    return None


def _float8_problem(case: Case, machine: Machine, tokens: int) -> str | None:
    """Reason why *case*, with *tokens* per micro-batch, can't multiply in float8; None if it can."""
    precision = case.precision
    if precision.float8 == "none":
        return None
    if lacking := _missing_package(["torchao"], machine, install_hint("float8")):
        return f"precision.float8 = {precision.float8}: {lacking}"
    if precision.float8_emulated:
        # torchao makes no promise about it, and torchtitan refuses it
        return "emulated float8 can't be compiled; use compile: false" if case.compile != "none" else None
    instead = (
        "use precision: bf16, or only check the case: precision.float8_emulated: true and measure.trials: 0"
    )
    if case.device == "cpu":
        return f"float8 needs NVIDIA GPUs of compute capability {_ADA} (Ada, Hopper) or newer; {instead}"
    capability = machine.compute_capability
    if capability is not None and capability < _ADA:
        needed = f"GPUs of compute capability {_ADA} (Ada, Hopper) or newer; this machine has {capability}"
        return f"float8 needs {needed}; {instead}"
    if precision.float8 != "rowwise_with_gw_hp" and tokens % FLOAT8_ALIGNMENT:
        return (
            f"float8 needs a multiple of {FLOAT8_ALIGNMENT} tokens in a micro-batch; batch.micro_batch_size "
            f"= {case.batch.micro_batch_size} makes {tokens:,}"
        )
    return None


def _memory_problem(case: Case, strategy: Strategy, workload: Workload, machine: Machine) -> str | None:
    """Reason why *machine* can't hold the model states of *case*; None if it can.

    By theory they are the least that it needs.
    """
    parameters = _least_parameters(workload)
    kinds = strategy.model_states(case, parameters) if parameters else None
    if kinds is None or "nvme" in strategy.offloads:
        return None
    if strategy.offloads and case.device != "cpu":
        return None
    states, room = sum(kinds.values()), memory_capacity(case, machine)
    if room is None or room.fits(states):
        return None
    known = "at least " if workload.parameters() is None else ""
    return (
        f"the model does not fit: the model states of {known}{parameters:,} parameters need "
        f"{room.need_text(states)} by theory, and {room.text}; "
        "use a smaller model, more devices, or a strategy that shards or offloads more"
    )

"""What all export formats share."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from distbench import registry
from distbench.analysis.text import one_line
from distbench.case import Case
from distbench.errors import UsageError
from distbench.strategies.base import Strategy


@dataclass(frozen=True)
class Measured:
    """Case to export: with its strategy, every option set, and the settings its live engine reported."""

    case: Case
    strategy: Strategy
    effective: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, case: Case, effective: Mapping[str, Any]) -> Measured:
        """*case* with its strategy.

        Raises:
            UsageError: this version can't export the strategy, or doesn't know one of its options.
        """
        name = case.strategy.name
        plugin = registry.built_in("strategies").get(name)
        if plugin is None:
            raise UsageError(f"{name}: plug-in strategies can't be exported")
        try:
            strategy = plugin(**case.strategy.options)
        except TypeError as error:
            raise UsageError(f"{name}: options from another version of distbench: {error}") from error
        return cls(case, strategy, effective)

    def value(self, key: str) -> Any:
        """Option of the strategy; if the suite left it unset, the value that the live engine reported."""
        option = getattr(self.strategy, key)
        return self.effective.get(key) if option is None else option


@dataclass(frozen=True)
class Adopted:
    """A case as configuration for another tool."""

    files: dict[str, str]
    """File name -> content, the main file first."""
    launch: str
    """Command that starts the user's own ``train.py`` with it."""
    notes: tuple[str, ...] = ()
    """What to do or to know beyond these files: settings that belong in the user's script."""
    differs: tuple[str, ...] = ()
    """Settings that this format can't express, so that training differs from the measured case."""


def settings(case: Case) -> dict[str, str]:
    """Every hyperparameter of *case* in words, for reference next to what the format expresses."""
    batch, precision = case.batch, case.precision
    options = {k: v for k, v in case.strategy.options.items() if v not in (None, "")}
    text = ", ".join(f"{key} = {_plain(value)}" for key, value in options.items())
    return {
        "strategy": f"{case.strategy.name}, {text}" if text else case.strategy.name,
        "processes": f"{case.world_size} on {case.device}, {case.threads} intra-op threads each",
        "batch": f"{batch.global_batch_size} samples per step = {batch.micro_batch_size} per micro-batch x "
        f"{batch.gradient_accumulation_steps} accumulation steps x {case.world_size} ranks",
        "optimizer": _optimizer_text(case),
        "clipping": "none"
        if case.optimizer.clip_grad_norm is None
        else f"global L2 norm of the gradients to {case.optimizer.clip_grad_norm!r}",
        "precision": f"compute {precision.compute}, reduce {precision.reduce}, master weights "
        f"{precision.master}, optimizer state {precision.optimizer_state}, loss scale "
        f"{'none' if precision.loss_scale is None else repr(precision.loss_scale)}",
        "activation checkpointing": case.activation_checkpointing,
        "seed": str(case.seed),
    }


def header(case: Case, launch: str, notes: Iterable[str], differs: Iterable[str]) -> list[str]:
    """Comment lines for the top of a file, if its format has comments."""
    lines = [f"{one_line(case.name)} ({case.id}), as measured by distbench.", ""]
    lines += [f"{name}: {one_line(value, 600)}" for name, value in settings(case).items()]
    lines += ["", f"Launch: {launch}"]
    lines += [f"Note: {one_line(note, 600)}" for note in notes]
    lines += [f"Differs: {one_line(difference, 600)}" for difference in differs]
    return lines


def commented(lines: Iterable[str]) -> str:
    """*lines* as comments in Python, YAML or TOML."""
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def literal(value: Any) -> str:
    """*value* as JSON, which YAML and TOML read too, for scalars and lists of scalars."""
    return json.dumps(value)


def as_json(data: Mapping[str, Any]) -> str:
    """*data* as the text of a JSON file."""
    return json.dumps(data, indent=2) + "\n"


def command(case: Case, *words: str, **variables: str) -> str:
    """Command line with the environment variables that the ranks of *case* had."""
    variables = {"OMP_NUM_THREADS": str(case.threads), **variables}
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in variables.items()), *words])


def torchrun(case: Case, **variables: str) -> str:
    """torchrun command for the ranks of *case*."""
    words = ("torchrun", "--standalone", f"--nproc-per-node={case.world_size}", "train.py")
    return command(case, *words, **variables)


def mixed(case: Case) -> bool:
    """Whether *case* computes in a different dtype than that of its master weights."""
    return case.precision.compute != case.precision.master


COMMON_NOTES = (
    "train.py is your script. Weight decay applies to every parameter, including biases and norms, and the "
    "learning rate is constant; with a scheduler or exempt parameters the training is not equivalent to the "
    "measured case.",
    "With a different number of processes, change the micro-batch size or accumulation to keep the global "
    "batch size.",
)


def layer_classes(measured: Measured) -> list[str]:
    """Classes of the layers that were wrapped individually; empty if the record doesn't have them."""
    if names := measured.case.workload.options.get("layer_classes"):
        return [str(name) for name in names]
    return measured.strategy.wrapped_layers(measured.effective)


def _optimizer_text(case: Case) -> str:
    spec = case.optimizer
    if spec.name == "adamw":
        own = f"AdamW, lr {spec.lr!r}, betas {list(spec.betas)}, eps {spec.eps!r}"
    else:
        own = f"SGD, lr {spec.lr!r}, momentum {spec.momentum!r}"
    return f"{own}, weight decay {spec.weight_decay!r} on all parameters, torch's {spec.kernel} kernel"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

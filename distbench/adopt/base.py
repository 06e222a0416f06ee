"""What every format leaves, and what they all have to say."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from distbench.analysis.text import one_line
from distbench.case import Case
from distbench.errors import UsageError
from distbench.strategies.base import Strategy
from distbench.strategies.ddp import DistributedDataParallel
from distbench.strategies.dp import DataParallel
from distbench.strategies.fsdp import FullyShardedDataParallel
from distbench.strategies.single import Single
from distbench.strategies.zero import Zero

_STRATEGIES: dict[str, type[Strategy]] = {
    "single": Single,
    "dp": DataParallel,
    "ddp": DistributedDataParallel,
    "fsdp": FullyShardedDataParallel,
    "zero": Zero,
}


@dataclass(frozen=True)
class Measured:
    """What is adopted: a case, its strategy with every option, and what the live engine told of itself."""

    case: Case
    strategy: Strategy
    effective: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, case: Case, effective: Mapping[str, Any]) -> Measured:
        """Return *case* with its strategy made.

        Raises:
            UsageError: the strategy, or an option of it, is none of this version of distbench.
        """
        name = case.strategy.name
        if name not in _STRATEGIES:
            raise UsageError(f"{name}: a strategy of a plug-in: nobody has said how others configure it")
        try:
            strategy = _STRATEGIES[name](**case.strategy.options)
        except TypeError as error:
            raise UsageError(f"{name}: options of another version of distbench: {error}") from error
        return cls(case, strategy, effective)

    def told(self, key: str) -> Any:
        """Return an option of the strategy, or where the suite left it open what the live engine had."""
        option = getattr(self.strategy, key)
        return self.effective.get(key) if option is None else option


@dataclass(frozen=True)
class Adopted:
    """A case as others configure it."""

    files: dict[str, str]
    """File name -> content, the one to begin with first."""
    launch: str
    """The command that starts the user's own ``train.py`` with it."""
    notes: tuple[str, ...] = ()
    """What the user has to do or to know: what stands in their script and not in these files."""
    differs: tuple[str, ...] = ()
    """What the case did and this format can't say: trained from it, that is not as measured."""


def settings(case: Case) -> dict[str, str]:
    """Return every hyper-parameter of *case* in words: what a format doesn't say is looked up here."""
    batch, precision = case.batch, case.precision
    options = {k: v for k, v in case.strategy.options.items() if v not in (None, "")}
    told = ", ".join(f"{key} = {_plain(value)}" for key, value in options.items())
    return {
        "strategy": f"{case.strategy.name}, {told}" if told else case.strategy.name,
        "processes": f"{case.world_size} on {case.device}, {case.threads} intra-op threads each",
        "batch": f"{batch.global_batch_size} samples a step = {batch.micro_batch_size} a micro-batch x "
        f"{batch.gradient_accumulation_steps} accumulated x {case.world_size} ranks",
        "optimizer": _optimizer_text(case),
        "clipping": "none"
        if case.optimizer.clip_grad_norm is None
        else f"global L2 norm of the gradients at {case.optimizer.clip_grad_norm!r}",
        "precision": f"compute {precision.compute}, reduce {precision.reduce}, master weights "
        f"{precision.master}, optimizer state {precision.optimizer_state}, loss scale "
        f"{'none' if precision.loss_scale is None else repr(precision.loss_scale)}",
        "activation checkpointing": case.activation_checkpointing,
        "seed": str(case.seed),
    }


def header(case: Case, launch: str, notes: Iterable[str], differs: Iterable[str]) -> list[str]:
    """Return the lines that stand as comments on top of a file whose format has them."""
    lines = [f"{one_line(case.name)} ({case.id}), as distbench measured it.", ""]
    lines += [f"{name}: {one_line(value, 600)}" for name, value in settings(case).items()]
    lines += ["", f"Launch: {launch}"]
    lines += [f"Note: {one_line(note, 600)}" for note in notes]
    lines += [f"Differs: {one_line(each, 600)}" for each in differs]
    return lines


def commented(lines: Iterable[str]) -> str:
    """Return *lines* as comments of Python, YAML or TOML."""
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def literal(value: Any) -> str:
    """Return *value* as JSON, which YAML and TOML read alike: for scalars and lists of them."""
    return json.dumps(value)


def as_json(data: Mapping[str, Any]) -> str:
    """Return *data* as a JSON file."""
    return json.dumps(data, indent=2) + "\n"


def command(case: Case, *words: str, **variables: str) -> str:
    """Return a command line with the variables that the ranks of *case* had."""
    given = {"OMP_NUM_THREADS": str(case.threads), **variables}
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in given.items()), *words])


def torchrun(case: Case, **variables: str) -> str:
    """Return torch's own launcher for the ranks of *case*."""
    words = ("torchrun", "--standalone", f"--nproc-per-node={case.world_size}", "train.py")
    return command(case, *words, **variables)


def mixed(case: Case) -> bool:
    """Return whether *case* computes in another dtype than its master weights have."""
    return case.precision.compute != case.precision.master


COMMON_NOTES = (
    "train.py is your script. Weight decay is on every parameter, biases and norms too, and the learning "
    "rate is constant: a scheduler or exempted parameters make it another training than the measured one.",
    "At another number of processes, change micro-batch or accumulation so that the global batch stays.",
)


def layer_classes(measured: Measured) -> list[str]:
    """Return the classes of the layers that were wrapped one by one, as far as the record tells; or none."""
    if given := measured.case.workload.options.get("layer_classes"):
        return [str(name) for name in given]
    # FSDP2 puts its name before that of a class; its engine is the root's class
    effective = measured.effective
    root = effective.get("engine")
    units = [str(name) for name in effective.get("unit_classes") or [] if name != root]
    if root == "FullyShardedDataParallel":
        # FSDP1 tells the root's class too, and not which one it is
        units = []
    found = [name.removeprefix("FSDP") for name in units]
    return [] if "CheckpointWrapper" in found else found


def _optimizer_text(case: Case) -> str:
    spec = case.optimizer
    if spec.name == "adamw":
        own = f"AdamW, lr {spec.lr!r}, betas {list(spec.betas)}, eps {spec.eps!r}"
    else:
        own = f"SGD, lr {spec.lr!r}, momentum {spec.momentum!r}"
    return f"{own}, weight decay {spec.weight_decay!r} on all parameters, torch's {spec.kernel} kernel"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)

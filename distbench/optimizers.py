"""The optimizers: where each comes from, what it is given, what it keeps, and where it is right.

From this one table follow the check of a suite, the optimizer that is built, what is read back from the live
one, the theory of its states, the code that ``adopt`` writes, and the reason where a strategy would break it.
Without torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from distbench.case import Optimizer, OptimizerName

Cut = Literal["whole", "rows", "flat"]
"""What a strategy hands to an optimizer: whole tensors; rows of each, as distributed tensors (DTensor), whose
operations gather what they need of the others; or flat pieces, which know nothing of rows and tensors."""


VARIANTS = ("amsgrad", "maximize", "nesterov", "dampening", "decoupled_weight_decay")
"""Options of classes that change the algorithm: reported by name where they are on."""


@dataclass(frozen=True)
class Weight:
    """What the memory theory knows of a trained tensor."""

    shape: tuple[int, ...]
    is_hidden: bool = False
    """A matrix inside one of the workload's layers: neither embedding nor output head."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


StateBytes = Callable[[Optimizer, Weight, int], float]
"""Bytes that an optimizer keeps for a tensor, where a number of its states has so many bytes."""


@dataclass(frozen=True)
class Kind:
    """One optimizer."""

    public: str
    """Its class as users import it."""
    arguments: Callable[[Optimizer], dict[str, Any]]
    """All hyper-parameters that its class is given, those that a suite can't change included."""
    state: StateBytes
    kernels: tuple[str, ...] = ("fused", "foreach", "loop")
    """Implementations that it has, the usual one first."""
    usual: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of keys of ``optimizer`` that differ from everybody else's."""
    package: str = "torch"
    """Distribution that has it."""
    needs: str = ""
    """What it can't compute from flat pieces of tensors; empty: it treats every element by itself."""
    fails_on_rows: str = ""
    """Why it can't be stepped on distributed tensors; empty: it can."""
    computes_in: Literal["", "bf16"] = ""
    """Dtype in which it computes updates, whatever that of the weights; empty: in theirs."""
    module: str = ""
    """Module that the live class says it is of, where users import it from another one."""
    rest: OptimizerName | None = None
    """Name of the optimizer of all but hidden matrices; None: it updates everything itself."""

    @property
    def name(self) -> str:
        """Name of its class."""
        return self.public.rpartition(".")[2]

    @property
    def cls(self) -> str:
        """Qualified name of the live class."""
        return f"{self.module}.{self.name}" if self.module else self.public

    def flags(self, spec: Optimizer) -> dict[str, bool]:
        """Arguments that choose the kernel, among those that it has."""
        return {kernel: spec.kernel == kernel for kernel in self.kernels if kernel != "loop"}

    def takes(self, option: str) -> bool:
        """Whether the key *option* of ``optimizer`` is a hyper-parameter of it."""
        return option in self.arguments(Optimizer())


def kind_of(spec: Optimizer) -> Kind:
    """The optimizer that *spec* names."""
    return KINDS[spec.name]


def usual(name: object) -> dict[str, Any]:
    """Defaults of the optimizer *name* that differ from those of the others."""
    kind = KINDS.get(str(name))
    if kind is None:
        return {}
    kernel = {} if "fused" in kind.kernels else {"kernel": kind.kernels[0]}
    return {**kernel, **kind.usual}


def state_bytes(spec: Optimizer, weights: Sequence[Weight], element: int) -> float:
    """Bytes of the states that *spec* keeps for *weights*, in states of *element* bytes a number."""
    return sum(kind_of(spec).state(spec, weight, element) for weight in weights)


def keeps_state(spec: Optimizer) -> bool:
    """Whether *spec* keeps anything from step to step."""
    return state_bytes(spec, [Weight((1,))], 1) > 0


def is_by_shape(spec: Optimizer) -> bool:
    """Whether what *spec* keeps depends on more than the number of elements."""
    return kind_of(spec).state not in _PER_ELEMENT


def problem(spec: Optimizer, cut: Cut, who: str) -> str | None:
    """Why *spec* would be another optimizer under *who*, which hands it tensors cut so; None if it isn't."""
    kind, whole = kind_of(spec), "a strategy with whole tensors (ddp, zero with stage: 0)"
    if cut == "rows" and kind.fails_on_rows:
        return f"optimizer.name = {spec.name}: {kind.fails_on_rows}; use {whole}"
    if cut != "flat" or not kind.needs:
        return None
    rows = "" if kind.fails_on_rows else ", fsdp with version: 2"
    return (
        f"optimizer.name = {spec.name} needs {kind.needs}, and {who} gives it flat pieces of tensors; use "
        f"{whole}{rows}, or an optimizer that treats each element by itself ({', '.join(_elementwise())})"
    )


def _elementwise() -> list[str]:
    return [name for name, kind in KINDS.items() if not kind.needs]


def mistakes(spec: Optimizer) -> list[tuple[str, str]]:
    """Keys of *spec* that its optimizer does not have, each with what is wrong."""
    kind, found = kind_of(spec), []
    if spec.momentum and not kind.takes("momentum"):
        having = " and ".join(name for name, each in KINDS.items() if each.takes("momentum"))
        verb = "have" if " and " in having else "has"
        found.append(("momentum", f"only {having} {verb} momentum, not {spec.name}"))
    if spec.kernel not in kind.kernels:
        allowed = ", ".join(kind.kernels)
        found.append(("kernel", f"{spec.name} has no {spec.kernel} kernel. Allowed: {allowed}"))
    return found


def _adam(spec: Optimizer) -> dict[str, Any]:
    return {"lr": spec.lr, "betas": tuple(spec.betas), "eps": spec.eps, "weight_decay": spec.weight_decay}


def _sgd(spec: Optimizer) -> dict[str, Any]:
    return {"lr": spec.lr, "momentum": spec.momentum, "weight_decay": spec.weight_decay}


def _adafactor(spec: Optimizer) -> dict[str, Any]:
    # the rest as Shazeer & Stern 2018 (arXiv:1804.04235, algorithm 5) have it
    return {
        "lr": spec.lr,
        "eps": (spec.eps, 1e-3),
        "beta2_decay": -0.8,
        "d": 1.0,
        "weight_decay": spec.weight_decay,
    }


def _muon(spec: Optimizer) -> dict[str, Any]:
    return {
        "lr": spec.lr,
        "momentum": spec.momentum,
        "weight_decay": spec.weight_decay,
        "nesterov": True,
        # torch's own, from https://kellerjordan.github.io/posts/muon
        "ns_coefficients": (3.4445, -4.7750, 2.0315),
        "eps": 1e-7,
        "ns_steps": 5,
        # by which one learning rate is that of AdamW as well (Liu et al. 2025, arXiv:2502.16982)
        "adjust_lr_fn": "match_rms_adamw",
    }


def _lion(spec: Optimizer) -> dict[str, Any]:
    # Chen et al. 2023 (arXiv:2302.06675)
    return {
        "lr": spec.lr,
        "betas": tuple(spec.betas),
        "weight_decay": spec.weight_decay,
        "weight_decouple": True,
        "fixed_decay": False,
    }


def _lamb(spec: Optimizer) -> dict[str, Any]:
    # You et al. 2020 (arXiv:1904.00962, algorithm 2): decay is a part of the update whose size is adjusted
    return {
        **_adam(spec),
        "weight_decouple": False,
        "fixed_decay": False,
        "rectify": False,
        "grad_averaging": True,
        "adam": False,
    }


def _one(_spec: Optimizer, weight: Weight, element: int) -> float:
    return weight.elements * element


def _two(_spec: Optimizer, weight: Weight, element: int) -> float:
    return 2 * weight.elements * element


def _momentum(spec: Optimizer, weight: Weight, element: int) -> float:
    return weight.elements * element if spec.momentum else 0.0


def _factored(_spec: Optimizer, weight: Weight, element: int) -> float:
    """A mean for each row and each column of a matrix; of a vector one for each element."""
    if len(weight.shape) < 2:
        return weight.elements * element
    return (weight.elements / weight.shape[-1] + weight.elements / weight.shape[-2]) * element


def _hidden(_spec: Optimizer, weight: Weight, element: int) -> float:
    return (1 if weight.is_hidden else 2) * weight.elements * element


_PER_ELEMENT = (_one, _two, _momentum)
_IN_PLACE = (
    "{} changes norms in place, which fails on the distributed tensors of FSDP2 (torch 2.13: in-place "
    "operations that require placement changes are not supported)"
)

KINDS: Mapping[str, Kind] = {
    "adamw": Kind("torch.optim.AdamW", _adam, _two, module="torch.optim.adamw"),
    "adam": Kind("torch.optim.Adam", _adam, _two, module="torch.optim.adam"),
    "sgd": Kind("torch.optim.SGD", _sgd, _momentum, module="torch.optim.sgd"),
    "adafactor": Kind(
        "torch.optim.Adafactor",
        _adafactor,
        _factored,
        kernels=("foreach", "loop"),
        needs="rows and columns, and norms of whole tensors",
        fails_on_rows=_IN_PLACE.format("torch.optim.Adafactor"),
    ),
    "muon": Kind(
        "torch.optim.Muon",
        _muon,
        _hidden,
        kernels=("loop",),
        usual={"momentum": 0.95},
        needs="whole matrices, whose updates it makes orthogonal",
        computes_in="bf16",
        rest="adamw",
    ),
    "lion": Kind(
        "pytorch_optimizer.Lion",
        _lion,
        _one,
        kernels=("foreach", "loop"),
        package="pytorch-optimizer",
        module="pytorch_optimizer.optimizer.lion",
    ),
    "lamb": Kind(
        "pytorch_optimizer.Lamb",
        _lamb,
        _two,
        kernels=("foreach", "loop"),
        package="pytorch-optimizer",
        needs="norms of whole tensors",
        fails_on_rows=_IN_PLACE.format("pytorch_optimizer.Lamb"),
        module="pytorch_optimizer.optimizer.lamb",
    ),
}
"""By the name in a suite."""

"""The optimizers by name: what each is given, and what it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distbench.core.case import Optimizer
from distbench.optimizers.kind import Kind, Weight


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
    # You et al. 2020 (arXiv:1904.00962v3, algorithm 2): decay is a part of the update whose size is adjusted,
    # and no bias is corrected. By default the package divides the rate by 1 - beta1^t all the same, which
    # the adjusted size does not need: the first step would be 10 times as large
    return {
        **_adam(spec),
        "weight_decouple": False,
        "fixed_decay": False,
        "rectify": False,
        "grad_averaging": True,
        "adam": False,
        "adam_debias": True,
    }


def _adamw8bit(spec: Optimizer) -> dict[str, Any]:
    return {**_adam(spec), "amsgrad": False, "block_size": _BLOCK, "bf16_stochastic_round": False}


def _one(_spec: Optimizer, weight: Weight, element: int) -> float:
    return weight.elements * element


def _two(_spec: Optimizer, weight: Weight, element: int) -> float:
    return 2 * weight.elements * element


def _momentum(spec: Optimizer, weight: Weight, element: int) -> float:
    return weight.elements * element if spec.momentum else 0.0


def _in_8_bits(_spec: Optimizer, weight: Weight, element: int) -> float:
    """A byte a number, 4 a block for its scale, and a table of 256; small and odd tensors are kept in full.

    By torchao's source (0.18: optim/adam.py, optim/subclass_8bit.py), after Dettmers et al. 2021
    (arXiv:2110.02861).
    """
    if weight.elements < _LEAST or weight.elements % _BLOCK:
        return 2 * weight.elements * element
    return 2 * (weight.elements + 4 * weight.elements / _BLOCK + 4 * 256)


def _factored(_spec: Optimizer, weight: Weight, element: int) -> float:
    """A mean for each row and each column of a matrix; of a vector one for each element."""
    if len(weight.shape) < 2:
        return weight.elements * element
    return (weight.elements / weight.shape[-1] + weight.elements / weight.shape[-2]) * element


def _hidden(_spec: Optimizer, weight: Weight, element: int) -> float:
    return (1 if weight.is_hidden else 2) * weight.elements * element


_BLOCK, _LEAST = 256, 4096
"""Numbers that torchao scales together, and those of the smallest tensor whose moments it keeps in 8 bits."""
PER_ELEMENT = (_one, _two, _momentum)
"""Rules by which the number of elements alone counts."""
_IN_PLACE = (
    "{} changes norms in place, which fails on distributed tensors, as of FSDP2 (torch 2.13: in-place "
    "operations that require placement changes are not supported)"
)
_ADAM, _SGD = ("lr", "betas", "eps", "weight_decay"), ("lr", "momentum", "weight_decay")

KINDS: Mapping[str, Kind] = {
    "adamw": Kind("torch.optim.AdamW", _adam, _ADAM, _two, module="torch.optim.adamw"),
    "adam": Kind("torch.optim.Adam", _adam, _ADAM, _two, module="torch.optim.adam"),
    "sgd": Kind("torch.optim.SGD", _sgd, _SGD, _momentum, module="torch.optim.sgd"),
    "adafactor": Kind(
        "torch.optim.Adafactor",
        _adafactor,
        ("lr", "weight_decay"),
        _factored,
        keys_inside=("eps",),
        kernels=("foreach", "loop"),
        needs="rows and columns, and norms of whole tensors",
        fails_on_rows=_IN_PLACE.format("torch.optim.Adafactor"),
    ),
    "muon": Kind(
        "torch.optim.Muon",
        _muon,
        _SGD,
        _hidden,
        keys_inside=("betas", "eps"),
        kernels=("loop",),
        usual={"momentum": 0.95},
        needs="whole matrices, whose updates it makes orthogonal",
        computes_in="bf16",
        rest="adamw",
    ),
    "lion": Kind(
        "pytorch_optimizer.Lion",
        _lion,
        ("lr", "betas", "weight_decay"),
        _one,
        kernels=("foreach", "loop"),
        package="pytorch-optimizer",
        module="pytorch_optimizer.optimizer.lion",
    ),
    "lamb": Kind(
        "pytorch_optimizer.Lamb",
        _lamb,
        _ADAM,
        _two,
        kernels=("foreach", "loop"),
        package="pytorch-optimizer",
        needs="norms of whole tensors",
        fails_on_rows=_IN_PLACE.format("pytorch_optimizer.Lamb"),
        module="pytorch_optimizer.optimizer.lamb",
    ),
    "adamw8bit": Kind(
        "torchao.optim.AdamW8bit",
        _adamw8bit,
        _ADAM,
        _in_8_bits,
        kernels=("loop",),
        package="torchao",
        needs=f"a scale for each {_BLOCK} numbers of a whole tensor",
        fails_on_rows=f"torchao cuts the rows of each rank into blocks of {_BLOCK} numbers and keeps less "
        f"than {_LEAST} in full, so that what is rounded would depend on the number of ranks",
        module="torchao.optim.adam",
        is_compiled=True,
    ),
}
"""By the name in a suite."""

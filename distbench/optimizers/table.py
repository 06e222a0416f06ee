"""Catalog of the optimizers by name: hyper-parameters and state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distbench.core.case import OptimizerConfig
from distbench.optimizers.kind import OptimizerEntry, ParameterShape


def _adam_arguments(spec: OptimizerConfig) -> dict[str, Any]:
    return {"lr": spec.lr, "betas": tuple(spec.betas), "eps": spec.eps, "weight_decay": spec.weight_decay}


def _sgd_arguments(spec: OptimizerConfig) -> dict[str, Any]:
    return {"lr": spec.lr, "momentum": spec.momentum, "weight_decay": spec.weight_decay}


def _adafactor_arguments(spec: OptimizerConfig) -> dict[str, Any]:
    # other values: Shazeer & Stern 2018 (arXiv:1804.04235, algorithm 5)
    return {
        "lr": spec.lr,
        "eps": (spec.eps, 1e-3),
        "beta2_decay": -0.8,
        "d": 1.0,
        "weight_decay": spec.weight_decay,
    }


def _muon_arguments(spec: OptimizerConfig) -> dict[str, Any]:
    return {
        "lr": spec.lr,
        "momentum": spec.momentum,
        "weight_decay": spec.weight_decay,
        "nesterov": True,
        # torch's default, from https://kellerjordan.github.io/posts/muon
        "ns_coefficients": (3.4445, -4.7750, 2.0315),
        "eps": 1e-7,
        "ns_steps": 5,
        # makes the learning rate of AdamW usable for Muon as well (Liu et al. 2025, arXiv:2502.16982)
        "adjust_lr_fn": "match_rms_adamw",
    }


def _lion_arguments(spec: OptimizerConfig) -> dict[str, Any]:
    # Chen et al. 2023 (arXiv:2302.06675)
    return {
        "lr": spec.lr,
        "betas": tuple(spec.betas),
        "weight_decay": spec.weight_decay,
        "weight_decouple": True,
        "fixed_decay": False,
    }


def _lamb_arguments(spec: OptimizerConfig) -> dict[str, Any]:
    # You et al. 2020 (arXiv:1904.00962v3, algorithm 2): weight decay is part of the update whose size is
    # adjusted, and there is no bias correction. By default the package still divides the rate by 1 - beta1^t,
    # which the adjusted size does not need: the first step would be 10 times as large
    return {
        **_adam_arguments(spec),
        "weight_decouple": False,
        "fixed_decay": False,
        "rectify": False,
        "grad_averaging": True,
        "adam": False,
        "adam_debias": True,
    }


def _adamw8bit_arguments(spec: OptimizerConfig) -> dict[str, Any]:
    return {
        **_adam_arguments(spec),
        "amsgrad": False,
        "block_size": _QUANT_BLOCK,
        "bf16_stochastic_round": False,
    }


def _one_moment(_spec: OptimizerConfig, weight: ParameterShape, element: int) -> float:
    return weight.elements * element


def _two_moments(_spec: OptimizerConfig, weight: ParameterShape, element: int) -> float:
    return 2 * weight.elements * element


def _optional_momentum(spec: OptimizerConfig, weight: ParameterShape, element: int) -> float:
    return weight.elements * element if spec.momentum else 0.0


def _blockwise_8bit(_spec: OptimizerConfig, weight: ParameterShape, element: int) -> float:
    """A byte per element, 4 per block for its scale, and a table of 256; small and odd tensors stay in full.

    By torchao's source (0.18: optim/adam.py, optim/subclass_8bit.py), after Dettmers et al. 2021
    (arXiv:2110.02861).
    """
    if weight.elements < _MIN_QUANTIZED or weight.elements % _QUANT_BLOCK:
        return 2 * weight.elements * element
    return 2 * (weight.elements + 4 * weight.elements / _QUANT_BLOCK + 4 * 256)


def _factored_moment(_spec: OptimizerConfig, weight: ParameterShape, element: int) -> float:
    """A mean for each row and each column of a matrix; for a vector, one for each element."""
    if len(weight.shape) < 2:
        return weight.elements * element
    return (weight.elements / weight.shape[-1] + weight.elements / weight.shape[-2]) * element


def _muon_moments(_spec: OptimizerConfig, weight: ParameterShape, element: int) -> float:
    return (1 if weight.is_layer_matrix else 2) * weight.elements * element


_QUANT_BLOCK, _MIN_QUANTIZED = 256, 4096
"""Elements that torchao scales together, and elements of the smallest tensor whose moments it keeps in 8
bits."""
ELEMENTWISE_RULES = (_one_moment, _two_moments, _optional_momentum)
"""Rules that depend only on the number of elements."""
_IN_PLACE_NORMS = (
    "{} changes norms in place, which fails on the distributed tensors of FSDP2 (torch 2.13: in-place "
    "operations that require placement changes are not supported)"
)
_ADAM_KEYS, _SGD_KEYS = ("lr", "betas", "eps", "weight_decay"), ("lr", "momentum", "weight_decay")

CATALOG: Mapping[str, OptimizerEntry] = {
    "adamw": OptimizerEntry(
        "torch.optim.AdamW", _adam_arguments, _ADAM_KEYS, _two_moments, live_module="torch.optim.adamw"
    ),
    "adam": OptimizerEntry(
        "torch.optim.Adam", _adam_arguments, _ADAM_KEYS, _two_moments, live_module="torch.optim.adam"
    ),
    "sgd": OptimizerEntry(
        "torch.optim.SGD", _sgd_arguments, _SGD_KEYS, _optional_momentum, live_module="torch.optim.sgd"
    ),
    "adafactor": OptimizerEntry(
        "torch.optim.Adafactor",
        _adafactor_arguments,
        ("lr", "weight_decay"),
        _factored_moment,
        embedded_keys=("eps",),
        kernels=("foreach", "loop"),
        needs_full_tensors="rows and columns, and norms of whole tensors",
        dtensor_problem=_IN_PLACE_NORMS.format("torch.optim.Adafactor"),
    ),
    "muon": OptimizerEntry(
        "torch.optim.Muon",
        _muon_arguments,
        _SGD_KEYS,
        _muon_moments,
        embedded_keys=("betas", "eps"),
        kernels=("loop",),
        own_defaults={"momentum": 0.95},
        needs_full_tensors="whole matrices, because it orthogonalizes their updates",
        compute_dtype="bf16",
        companion="adamw",
    ),
    "lion": OptimizerEntry(
        "pytorch_optimizer.Lion",
        _lion_arguments,
        ("lr", "betas", "weight_decay"),
        _one_moment,
        kernels=("foreach", "loop"),
        package="pytorch-optimizer",
        live_module="pytorch_optimizer.optimizer.lion",
    ),
    "lamb": OptimizerEntry(
        "pytorch_optimizer.Lamb",
        _lamb_arguments,
        _ADAM_KEYS,
        _two_moments,
        kernels=("foreach", "loop"),
        package="pytorch-optimizer",
        needs_full_tensors="norms of whole tensors",
        dtensor_problem=_IN_PLACE_NORMS.format("pytorch_optimizer.Lamb"),
        live_module="pytorch_optimizer.optimizer.lamb",
    ),
    "adamw8bit": OptimizerEntry(
        "torchao.optim.AdamW8bit",
        _adamw8bit_arguments,
        _ADAM_KEYS,
        _blockwise_8bit,
        kernels=("loop",),
        package="torchao",
        needs_full_tensors=f"a scale for each {_QUANT_BLOCK} numbers of a whole tensor",
        dtensor_problem=f"torchao quantizes the rows of each rank in blocks of {_QUANT_BLOCK} numbers, "
        f"and not at all below {_MIN_QUANTIZED}, so rounding would depend on the number of ranks",
        live_module="torchao.optim.adam",
        is_compiled=True,
    ),
}
"""Optimizer entries by their names in a suite."""

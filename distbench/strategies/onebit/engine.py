"""The worker's side of ``onebit``: DeepSpeed's stage 0 with a 1-bit optimizer of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import deepspeed.runtime.comm.compressed as theirs
import torch
from torch import nn

from distbench import optimizers
from distbench.strategies.base import Setting
from distbench.strategies.onebit import OneBit
from distbench.strategies.onebit.gloo import GlooBackend
from distbench.strategies.torch_engine.averaging import averaged, of_copies
from distbench.strategies.torch_engine.reading import Ledger, norm
from distbench.strategies.torch_engine.unsaved import Unsaved
from distbench.strategies.zero import Zero
from distbench.strategies.zero.config import configuration
from distbench.strategies.zero.engine import ZeroEngine, initialized

T = TypeVar("T")

# DeepSpeed's name of each in its configuration
_TYPES = {"adam": "OneBitAdam", "zero_one_adam": "ZeroOneAdam", "lamb": "OneBitLamb"}
# by its source: it keeps no flag of what it can't do otherwise
_ALWAYS = {
    "adam": {"decoupled_weight_decay": True},
    "zero_one_adam": {"decoupled_weight_decay": True},
    "lamb": {
        "decoupled_weight_decay": False,
        "weight_decouple": False,
        "fixed_decay": False,
        "rectify": False,
        "grad_averaging": True,
        "adam": False,
        "adam_debias": True,
    },
}


class OneBitEngine(Unsaved, ZeroEngine):
    """Ranks keep gradients of their own once it compresses; in local steps of 0/1 Adam they train apart."""

    def __init__(self, strategy: OneBit, setting: Setting, engine: Any, layers: list[nn.Module]) -> None:
        super().__init__(setting, engine, layers)
        self._strategy = strategy
        self._updates = 0

    @property
    def no_checkpoint(self) -> str:
        return (
            "DeepSpeed drops the errors of a 1-bit optimizer when a checkpoint is loaded, so no training "
            "resumes exactly"
        )

    def step(self) -> None:
        super().step()
        self._updates += 1

    @property
    def has_equal_replicas(self) -> bool:
        # a local step is taken back and replaced by the mean, which rounds differently on each rank
        return self._strategy.algorithm != "zero_one_adam" or self._updates <= self._strategy.freeze_step

    def grad_norm(self) -> float:
        return norm(gradient for _, gradient in self.full_gradients())

    def full_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        # the optimizer tells the engine before each step whether to reduce its gradients
        return of_copies(super().full_gradients(), are_equal=self._engine.enable_backward_allreduce)

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        return of_copies(super().full_parameters(), are_equal=self.has_equal_replicas)

    def evaluate(self, judge: Callable[[nn.Module], T]) -> T:
        apart = [] if self.has_equal_replicas else self._engine.module.parameters()
        with averaged(apart):
            return super().evaluate(judge)

    def effective(self) -> dict[str, Any]:
        told, optimizer = super().effective(), self._engine.basic_optimizer
        own: dict[str, Any] = {"reduced_by": type(optimizer.comm_backend_handle).__qualname__}
        if self._strategy.algorithm == "zero_one_adam":
            own |= {
                "freeze_step": optimizer.var_freeze_step + 1,
                "var_update_scaler": optimizer.var_update_scaler,
                "local_steps": optimizer.local_step_clipper,
            }
        else:
            own["freeze_step"] = optimizer.freeze_step
        always = _ALWAYS[self._strategy.algorithm]
        return {**told, "optimizer": {**told["optimizer"], **always}, "onebit": own}

    def book(self, ledger: Ledger) -> None:
        super().book(ledger)
        # 1-bit LAMB keeps them beside its state, for all tensors at once
        kept = ("exp_avg_flat", "worker_errors", "server_errors")
        ledger.book("optimizer_state", [getattr(self._engine.basic_optimizer, name, None) for name in kept])


def build_onebit(strategy: OneBit, setting: Setting) -> OneBitEngine:
    """Engine of this rank."""
    plain = Zero(stage=0)
    with _transport(setting) as transport:
        section = {"type": _TYPES[strategy.algorithm], "params": _parameters(strategy, setting) | transport}
        # 1-bit LAMB asks for a dynamic loss scale in fp32 too, which has none
        own = {"optimizer": section, "fp16": {"enabled": False}}
        config = configuration(plain, setting.case, {}) | own
        return OneBitEngine(strategy, setting, *initialized(plain, setting, config))


def _parameters(strategy: OneBit, setting: Setting) -> dict[str, Any]:
    """Arguments of DeepSpeed's optimizer, every hyper-parameter explicit."""
    spec = setting.case.optimizer
    shared = {key: getattr(spec, key) for key in optimizers.kind_of(spec).keys}
    if strategy.algorithm != "zero_one_adam":
        return {**shared, "freeze_step": strategy.freeze_step}
    return {
        **shared,
        "var_freeze_step": strategy.freeze_step - 1,
        "var_update_scaler": strategy.var_update_scaler,
        "local_step_scaler": 1,
        "local_step_clipper": strategy.local_steps,
    }


@contextmanager
def _transport(setting: Setting) -> Iterator[dict[str, Any]]:
    """Arguments by which an optimizer of DeepSpeed that is made here finds what it reduces by.

    It knows its backends by name. On a CPU ``GlooBackend`` is lent the name, and the place, of that of
    Intel's devices.
    """
    if setting.device.type != "cpu":
        yield {"comm_backend_name": "nccl"}
        return
    own = theirs.CompressedBackend
    theirs.CompressedBackend = GlooBackend
    try:
        yield {"comm_backend_name": "compressed"}
    finally:
        theirs.CompressedBackend = own

"""Engine of ``onebit``, in the worker: DeepSpeed's stage 0 with one of its 1-bit optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import deepspeed.runtime.comm.compressed as theirs
import torch
from torch import nn

from distbench import optimizers
from distbench.strategies.base import RankContext
from distbench.strategies.engine import NoCheckpoints
from distbench.strategies.onebit import OneBit
from distbench.strategies.onebit.gloo import GlooBackend
from distbench.strategies.torch_engine.readback import StorageCounter, l2_norm
from distbench.strategies.torch_engine.replica_average import averaged_parameters, mean_of_replicas
from distbench.strategies.zero import Zero
from distbench.strategies.zero.build import create_engine
from distbench.strategies.zero.config import configuration
from distbench.strategies.zero.engine import ZeroEngine

T = TypeVar("T")

# DeepSpeed's name of each in its configuration
_CONFIG_NAMES = {"adam": "OneBitAdam", "zero_one_adam": "ZeroOneAdam", "lamb": "OneBitLamb"}
# from its source: it has no flags for behavior that can't be changed
_FIXED_SETTINGS = {
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


class OneBitEngine(NoCheckpoints, ZeroEngine):
    """Engine of DeepSpeed's 1-bit optimizers; gradients stay local once compression starts.

    In local steps of 0/1 Adam the replicas diverge.
    """

    def __init__(self, strategy: OneBit, context: RankContext, engine: Any, layers: list[nn.Module]) -> None:
        super().__init__(context, engine, layers)
        self._strategy = strategy
        self._updates = 0

    @property
    def checkpoint_problem(self) -> str:
        return (
            "a 1-bit optimizer can't resume exactly, because DeepSpeed drops its error buffers when a "
            "checkpoint is loaded"
        )

    def step(self) -> None:
        super().step()
        self._updates += 1

    @property
    def has_equal_replicas(self) -> bool:
        # a local step is undone and replaced by the mean, which rounds differently on each rank
        return self._strategy.algorithm != "zero_one_adam" or self._updates <= self._strategy.freeze_step

    def grad_norm(self) -> float:
        return l2_norm(gradient for _, gradient in self.full_gradients())

    def full_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        # before each step the optimizer sets on the engine whether gradients are reduced
        return mean_of_replicas(super().full_gradients(), are_equal=self._engine.enable_backward_allreduce)

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        return mean_of_replicas(super().full_parameters(), are_equal=self.has_equal_replicas)

    def evaluate(self, score: Callable[[nn.Module], T]) -> T:
        diverged = [] if self.has_equal_replicas else self._engine.module.parameters()
        with averaged_parameters(diverged):
            return super().evaluate(score)

    def effective_settings(self) -> dict[str, Any]:
        settings, optimizer = super().effective_settings(), self._engine.basic_optimizer
        own: dict[str, Any] = {"reduced_by": type(optimizer.comm_backend_handle).__qualname__}
        if self._strategy.algorithm == "zero_one_adam":
            own |= {
                "freeze_step": optimizer.var_freeze_step + 1,
                "var_update_scaler": optimizer.var_update_scaler,
                "local_steps": optimizer.local_step_clipper,
            }
        else:
            own["freeze_step"] = optimizer.freeze_step
        always = _FIXED_SETTINGS[self._strategy.algorithm]
        return {**settings, "optimizer": {**settings["optimizer"], **always}, "onebit": own}

    def count_storages(self, counter: StorageCounter) -> None:
        super().count_storages(counter)
        # 1-bit LAMB keeps them outside of its state, for all tensors at once
        kept = ("exp_avg_flat", "worker_errors", "server_errors")
        counter.count("optimizer_state", [getattr(self._engine.basic_optimizer, name, None) for name in kept])


def build_onebit(strategy: OneBit, context: RankContext) -> OneBitEngine:
    """Engine of this rank."""
    plain = Zero(stage=0)
    with _gloo_backend(context) as transport:
        section = {
            "type": _CONFIG_NAMES[strategy.algorithm],
            "params": _parameters(strategy, context) | transport,
        }
        # 1-bit LAMB requires a dynamic loss scale even in fp32, which has none
        own = {"optimizer": section, "fp16": {"enabled": False}}
        config = configuration(plain, context.case, {}) | own
        return OneBitEngine(strategy, context, *create_engine(plain, context, config))


def _parameters(strategy: OneBit, context: RankContext) -> dict[str, Any]:
    """Arguments of DeepSpeed's optimizer, every hyper-parameter explicit."""
    spec = context.case.optimizer
    shared = {key: getattr(spec, key) for key in optimizers.entry_of(spec).checked_keys}
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
def _gloo_backend(context: RankContext) -> Iterator[dict[str, Any]]:
    """Arguments by which an optimizer of DeepSpeed created here finds its communication backend.

    It finds backends by name. On a CPU, ``GlooBackend`` temporarily takes the name and the place of the
    backend for Intel's devices.
    """
    if context.device.type != "cpu":
        yield {"comm_backend_name": "nccl"}
        return
    own = theirs.CompressedBackend
    theirs.CompressedBackend = GlooBackend
    try:
        yield {"comm_backend_name": "compressed"}
    finally:
        theirs.CompressedBackend = own

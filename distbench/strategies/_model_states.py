"""Model states: ZeRO's table for the dtypes in use, and the limits of optimizers. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection

from distbench import optimizers
from distbench.core.case import DTYPE_BYTES, Case, Dtype
from distbench.core.machine import Machine
from distbench.optimizers import TensorLayout
from distbench.strategies.base import TORCH_CHECKPOINT, Strategy


def sharded_model_states(
    case: Case,
    parameters: int,
    *,
    stored: Dtype,
    gradients: Dtype | None = None,
    master: Dtype | None = None,
    shards: tuple[float, float, float] = (1, 1, 1),
) -> dict[str, float]:
    """Bytes of a rank's model states; gradients as they are after the backward pass.

    *stored* is the dtype of the parameters, *gradients* that of their gradients if it differs, *master* that
    of a second copy which the optimizer updates, and *shards* the numbers of ranks that parameters,
    gradients, and optimizer states with the master weights are sharded over. Rajbhandari et al. 2020
    (arXiv:1910.02054, figure 1) have 2 + 2 + K bytes per element, K = 12: 4 of master weights and 2 x 4 of
    Adam's moments. For an optimizer whose state per element depends on the matrix, this assumes large ones;
    callers that know the shapes recompute it.
    """
    of_parameters, of_gradients, of_optimizer = shards
    state = optimizers.bytes_per_parameter(case.optimizer, DTYPE_BYTES[case.precision.optimizer_state])
    return {
        "parameters": parameters * DTYPE_BYTES[stored] / of_parameters,
        "gradients": parameters * DTYPE_BYTES[gradients or stored] / of_gradients,
        "optimizer_state": parameters * state / of_optimizer,
        "master": parameters * DTYPE_BYTES[master] / of_optimizer if master else 0.0,
    }


def optimizer_problem(case: Case, layout: TensorLayout = "whole", strategy_name: str = "") -> str | None:
    """Reason why the optimizer of *case* can't be used as requested; None if it can.

    *layout* is the layout in which the strategy, *strategy_name*, passes tensors to it.
    """
    precision = case.precision
    if precision.optimizer_state != precision.master:
        return (
            "torch's optimizers keep their state in the dtype of the parameters: precision."
            f"optimizer_state = {precision.optimizer_state} needs the same precision.master"
        )
    return optimizers.layout_problem(case.optimizer, layout, strategy_name)


class ReplicatedStrategy(Strategy):
    """A full model on every device, updated by torch's own optimizer."""

    @property
    def checkpoint_format(self) -> str:
        return TORCH_CHECKPOINT

    def problem(self, case: Case, machine: Machine) -> str | None:
        return optimizer_problem(case)

    def mesh_sizes(self, ranks: int) -> dict[str, int]:
        return {"dp_replicate": ranks}

    @property
    def operations_on_frozen(self) -> Collection[str] | None:
        return ()

    def traffic_by_operation(self, case: Case, parameters: int) -> dict[str, float] | None:
        return {}

    def model_states(self, case: Case, parameters: int) -> dict[str, float] | None:
        return sharded_model_states(case, parameters, stored=case.precision.master)

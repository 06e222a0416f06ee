"""Traffic, model states and declared difference of DeepSpeed's 1-bit optimizers. Imports no torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.strategies.description import ExpectedCollective
from distbench.strategies.theory.data_parallelism import REPLICATED
from distbench.workloads.base import workload_of

if TYPE_CHECKING:
    from distbench.strategies.onebit import OneBit

_ELEMENT_BYTES = DTYPE_BYTES["fp32"]
# moments, and other state with an element per parameter: the variance that 1-bit LAMB continues to estimate,
# the updates that 0/1 Adam has yet to send
_STATES_PER_PARAMETER = {"adam": 2, "zero_one_adam": 3, "lamb": 3}
_NAMES = {"adam": "1-bit Adam", "zero_one_adam": "0/1 Adam", "lamb": "1-bit LAMB"}


def difference_text(onebit: OneBit) -> str:
    """Description of the declared difference of *onebit*."""
    bias = "" if onebit.algorithm == "lamb" else ", has no bias correction"
    does = f"reduces the momentum from step {onebit.freeze_step} on with 1 bit per element"
    if onebit.algorithm == "zero_one_adam":
        alone = f" of {onebit.local_steps} local steps" if onebit.local_steps > 1 else ""
        does = f"reduces the updates{alone} from step {onebit.freeze_step} on with 1 bit per element"
    name = _NAMES[onebit.algorithm]
    return f"{name} skips the first update{bias}, and {does}, adding the error to the next"


def padded_elements(elements: int, ranks: int) -> int:
    """Padded size of a buffer of *elements* that *ranks* reduce: each has whole bytes of each part of it.

    As DeepSpeed pads (0.19.6): to a multiple of ranks x lcm(ranks, 8).
    """
    unit = ranks * math.lcm(ranks, 8)
    return math.ceil(elements / unit) * unit


def onebit_traffic(onebit: OneBit, case: Case, parameters: int) -> list[ExpectedCollective] | None:
    """Collectives of a rank, mean over the steps once it is steady; None: tensor shapes are unknown.

    Tang et al. 2021 (arXiv:2102.02888, section 6): for each buffer an all-to-all of 1 bit per element, and an
    all-gather of the same size of the sums; with each the scales of all ranks. 1-bit LAMB has one buffer for
    all tensors (Li et al. 2021, arXiv:2104.06069, section 6), the others one per tensor.
    """
    buffers, ranks = _buffer_elements(onebit, case, parameters), case.world_size
    if buffers is None:
        return None
    signs, scales = sum(buffers) / 8, 2 * len(buffers) * ranks * _ELEMENT_BYTES
    every = onebit.local_steps
    over = "dp_replicate"
    return [
        ExpectedCollective("all_to_all", signs / every, over, len(buffers) / every),
        ExpectedCollective("all_gather", (signs + scales) / every, over, 3 * len(buffers) / every),
    ]


def onebit_model_states(onebit: OneBit, case: Case, parameters: int) -> dict[str, float]:
    """Bytes of a rank's model states, by kind: DDP's, and the errors of both halves of each reduction."""
    sizes = REPLICATED.model_states(case, parameters, stored="fp32")
    elements = sum(
        _buffer_elements(onebit, case, parameters) or [padded_elements(parameters, case.world_size)]
    )
    errors = elements + elements / case.world_size
    sizes["optimizer_state"] = (
        _STATES_PER_PARAMETER[onebit.algorithm] * parameters + errors
    ) * _ELEMENT_BYTES
    return sizes


def _buffer_elements(onebit: OneBit, case: Case, parameters: int) -> list[int] | None:
    """Elements of each buffer that is reduced; None: the shapes of the tensors are unknown."""
    if onebit.algorithm == "lamb":
        return [padded_elements(parameters, case.world_size)]
    shapes = workload_of(case).tensor_shapes()
    return (
        None if shapes is None else [padded_elements(math.prod(shape), case.world_size) for shape in shapes]
    )

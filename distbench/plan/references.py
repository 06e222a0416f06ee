"""The reference trainings that cases are compared with."""

from __future__ import annotations

import dataclasses

from distbench.core import registry
from distbench.core.case import CURRENT_ENVIRONMENT, NATIVE_ENGINE, Batch, Case, LoaderConfig, PluginChoice
from distbench.strategies.base import REFERENCE_STRATEGY


def reference_case(case: Case) -> Case:
    """Reference of *case*: one process with the whole global batch."""
    size = case.batch.global_batch_size
    return torch_reference_case(case, PluginChoice(REFERENCE_STRATEGY), 1, Batch(size, size, 1))


def micro_batched_reference(case: Case) -> Case:
    """Reference of *case* with the same micro-batches, if the result depends on the division of batches."""
    if not case.depends_on_batch_division:
        return reference_case(case)
    batch = dataclasses.replace(case.batch, gradient_accumulation_steps=case.batch.total_micro_batches)
    return torch_reference_case(case, PluginChoice(REFERENCE_STRATEGY), 1, batch)


def torch_reference_case(
    template: Case, strategy: PluginChoice, world_size: int, batch: Batch, *, recompute: bool = False
) -> Case:
    """The training of *template* with *strategy*, one of torch's own, and its batch divided as *batch*.

    *recompute*: activations are computed again in the backward pass, which takes less memory.
    """
    case = dataclasses.replace(
        template,
        strategy=strategy,
        world_size=world_size,
        batch=batch,
        activation_checkpointing="full" if recompute else "none",
        compile="none",
        environment=CURRENT_ENVIRONMENT,
        env={},
        engine=NATIVE_ENGINE,
        loader=LoaderConfig(),
    )
    label: str = registry.create_plugin("strategies", strategy).label
    name = f"reference/{label}/ws{world_size}/mb{batch.micro_batch_size}/{template.precision.label}"
    return dataclasses.replace(case, label=label, name=f"{name}/{template.optimizer.name}")

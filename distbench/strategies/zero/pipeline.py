"""Theory of DeepSpeed's PipelineModule: 1F1B, one stage per rank. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.strategies.description import ExpectedCollective
from distbench.strategies.requirements import nearest_text, transform_problem
from distbench.strategies.theory.pipeline_parallelism import (
    split_evenly,
    stages_of,
    too_many_stages_text,
    undeclared_stages,
)

DEFAULT_MICRO_BATCHES = 4
"""Default number of parts of a micro-batch in a pipeline."""
DEEPSPEED_SCHEDULE = "1F1B"
"""Order in which DeepSpeed's TrainSchedule runs the passes."""


@dataclass(frozen=True)
class DeepSpeedPipeline:
    """The layers of a case in stages, one on each of ``ranks`` ranks, which process the same samples."""

    dimension: ClassVar = "pp"
    ranks: int
    micro_batches: int
    """Parts of a micro-batch of the suite; DeepSpeed's gradient accumulation steps."""

    def split_layers(self, case: Case) -> list[range]:
        """Layers of each stage."""
        model = stages_of(case)
        return split_evenly(len(model.layer_parameters), self.ranks) if model else []

    def required_settings(self, case: Case) -> dict[str, Any]:
        """Settings of it that ``Engine.effective_settings`` must report."""
        return {
            "schedule": DEEPSPEED_SCHEDULE,
            "stages": self.ranks,
            "micro_batches": self.micro_batches,
            "layers_of_stages": tuple(map(len, self.split_layers(case))),
        }

    def problem(self, case: Case) -> str | None:
        """Reason why *case* can't be trained with it; None if it can."""
        model = stages_of(case)
        if model is None:
            return undeclared_stages(case)
        if (layers := len(model.layer_parameters)) < self.ranks:
            fewer = f"at most pp: {layers}, or " if layers > 1 else ""
            return (
                f"mesh: {{pp: {self.ranks}}}: {too_many_stages_text(layers, self.ranks)}; use {fewer}a model "
                f"of at least {self.ranks} layers"
            )
        return self._batch_problem(case) or transform_problem(case, "pipeline parallelism")

    def _batch_problem(self, case: Case) -> str | None:
        samples, steps = case.batch.micro_batch_size, case.batch.gradient_accumulation_steps
        if steps > 1:
            # its schedule ends with the update, so nothing could be accumulated
            whole = samples * steps
            return (
                f"batch.gradient_accumulation_steps = {steps}: DeepSpeed's pipeline accumulates only over "
                "its own micro-batches; use batch.gradient_accumulation_steps: 1, and micro_batches that "
                f"divide {whole} samples: {_nearest_divisors(whole, self.micro_batches * steps)}"
            )
        if samples % self.micro_batches:
            return (
                f"micro_batches = {self.micro_batches} does not divide batch.micro_batch_size = {samples}; "
                f"nearest divisors: {_nearest_divisors(samples, self.micro_batches)}"
            )
        return None

    def parameters_per_rank(self, case: Case, parameters: int) -> int:
        """Parameters of a stage, mean over ranks, including copies of tied ones."""
        every = self._parameters_of_stages(case)
        return round(sum(every) / self.ranks) if every else parameters

    def max_parameters(self, case: Case, parameters: int) -> int:
        """Parameters of the largest stage."""
        return max(self._parameters_of_stages(case), default=parameters)

    def traffic(self, case: Case, samples: int) -> list[ExpectedCollective]:
        """Collectives of a rank in a step for *samples* samples, over the dimension ``pp``: means over ranks.

        Across each boundary between two stages the activations of every sample are sent forward, and
        gradients of the same size back (Narayanan et al. 2021, arXiv:2104.04473, section 3.2).
        """
        model, ranks = stages_of(case), self.ranks
        if model is None:
            return []
        element, both_ways = DTYPE_BYTES[case.precision.compute], 2 * (ranks - 1) / ranks
        crossing = both_ways * samples * model.activation_size * element
        calls = both_ways * self.micro_batches
        return [ExpectedCollective(op, crossing, "pp", calls) for op in ("send", "recv")]

    def tied_weight_traffic(self, case: Case, dtype: str) -> list[ExpectedCollective]:
        """Sums of the gradients of tied weights in *dtype* over both ends, per step: means over ranks."""
        model, ranks = stages_of(case), self.ranks
        if model is None or not model.tied_names:
            return []
        tied = 2 * model.tied_parameters * DTYPE_BYTES[dtype] / ranks
        return [ExpectedCollective("all_reduce", tied, "pp", 2 * len(model.tied_names) / ranks)]

    def _parameters_of_stages(self, case: Case) -> list[int]:
        model = stages_of(case)
        return [model.parameters(layers) for layers in self.split_layers(case)] if model else []


def _nearest_divisors(samples: int, parts: int) -> str:
    """Numbers of parts close to *parts* into which *samples* can be split, in words."""
    return nearest_text((number for number in range(1, samples + 1) if samples % number == 0), parts)

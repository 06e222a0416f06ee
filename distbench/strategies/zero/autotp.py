"""AutoTP: theory and configuration of DeepSpeed's tensor parallelism. Imports no torch.

DeepSpeed splits the linear layers of the blocks, and replicates embedding, norms and head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.strategies.description import ExpectedCollective
from distbench.strategies.requirements import transform_problem
from distbench.strategies.theory.tensor_parallelism import undeclared_layers
from distbench.workloads.base import workload_of
from distbench.workloads.splits import TensorSplits


@dataclass(frozen=True)
class AutoTp:
    """DeepSpeed's split of the layers of a case across ``ranks`` ranks that process the same samples."""

    dimension: ClassVar = "tp"
    ranks: int

    def problem(self, case: Case) -> str | None:
        """Reason why *case* can't be trained with it; None if it can."""
        splits = workload_of(case).tensor_splits()
        if splits is None:
            return undeclared_layers(case)
        if splits.partial and self.ranks > 1:
            return (
                f"mesh: tp: each device normalises some of the heads with {', '.join(splits.partial)}, "
                "whose gradients DeepSpeed (0.19.8) does not sum over the devices; use tp, or fsdp: "
                "{mesh: {tp: 2}}"
            )
        # the embedding and the head are not split, so any vocabulary size is possible
        counts = {name: count for name, count in splits.divisible_sizes.items() if name != "vocab_size"}
        if reason := replace(splits, divisible_sizes=counts).problem(self.ranks):
            return f"tensor parallelism over {self.ranks} devices: {reason}"
        return transform_problem(case, "tensor parallelism")

    def parameters_per_rank(self, case: Case, parameters: int) -> int:
        """Parameters per device out of *parameters*: a share of the blocks' linear layers, and all else."""
        if self.ranks == 1:
            return parameters
        splits = workload_of(case).tensor_splits()
        whole = _replicated_parameters(splits) if splits else 0
        return whole + (parameters - whole) // self.ranks

    def max_parameters(self, case: Case, parameters: int) -> int:
        """Parameters of the device with the most: all have the same number."""
        return self.parameters_per_rank(case, parameters)

    def traffic(self, case: Case, samples: int) -> list[ExpectedCollective]:
        """Collectives of a rank in a step for *samples* samples, over the dimension ``tp``.

        Megatron-LM (arXiv:1909.08053, figure 4) sums once for the layers that share an input. DeepSpeed sums
        the gradient of that input separately for each of them: for query, key, value, gate and up five times
        rather than twice. A recomputed layer repeats the sums of its outputs, except the last.
        """
        if self.ranks == 1 or (splits := workload_of(case).tensor_splits()) is None:
            return []
        sums = splits.layers * (len(splits.colwise) + len(splits.rowwise))
        if case.activation_checkpointing != "none":
            sums += splits.layers * (len(splits.rowwise) - 1)
        once = samples * splits.seq_len * splits.hidden_size * DTYPE_BYTES[case.precision.compute]
        calls = sums * case.batch.gradient_accumulation_steps
        return [ExpectedCollective("all_reduce", sums * once, "tp", calls)]

    def configuration(self, case: Case) -> dict[str, Any]:
        """DeepSpeed's section ``tensor_parallel``: the layers that it splits, and their split."""
        splits = workload_of(case).tensor_splits()
        assert splits is not None, "problem refuses a workload that says nothing of splitting"
        specs = [_layer_spec("column", splits.colwise), _layer_spec("row", splits.rowwise)]
        partition = {"use_default_specs": False, "layer_specs": specs}
        return {"autotp_size": self.ranks, "partition_config": partition}


def _replicated_parameters(splits: TensorSplits) -> int:
    """Parameters of norms, embedding and head; a tied head counts once."""
    table = splits.vocab_size * splits.hidden_size
    return splits.replicated_parameters + table * (1 if splits.tied else 2)


def _layer_spec(kind: str, layers: tuple[str, ...]) -> dict[str, Any]:
    return {"patterns": [_weight_pattern(layer) for layer in layers], "partition_type": kind}


def _weight_pattern(layer: str) -> str:
    """Regular expression of the weights of the layers *layer*, in which ``*`` stands for any number."""
    parts = [r"\d+" if part == "*" else part for part in layer.split(".")]
    return "\\.".join([*parts, "weight$"])

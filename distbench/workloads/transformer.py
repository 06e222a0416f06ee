"""``transformer``: a decoder of today, from a toy for the CPU to the shapes of Llama 3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from distbench.core.bounds import Bound, Count
from distbench.data.base import DataShape
from distbench.workloads import _decoder_plan as parting
from distbench.workloads._decoder_operations import model_operations
from distbench.workloads._dimensions import PRESETS, Dimensions
from distbench.workloads.base import Workload, cross_entropy, model_output
from distbench.workloads.context import AttentionWrapper, ContextSplit
from distbench.workloads.mixture import ExpertLayers
from distbench.workloads.module_calls import ModuleCall
from distbench.workloads.operations import ModelOperations, RowSplit
from distbench.workloads.splits import TensorSplits
from distbench.workloads.stages import PipelineStages

if TYPE_CHECKING:
    import torch
    from torch import nn

    from distbench.core.machine import Machine


_ADAMW_STATE_BYTES = 16
"""Bytes per parameter that AdamW in mixed precision keeps (Rajbhandari et al. 2020, section 3.1)."""

# limits of a check that reduces its work: two layers have a first, a last and a boundary between them
_SHORT_SEQ_LEN, _MIN_SEQ_LEN, _MIN_DEPTH, _MIN_VOCAB = 128, 16, 2, 1024

_OptionalCount = Annotated[int | None, Bound(1)]
_OptionalPositive = Annotated[float | None, Bound(0, open_low=True)]


@dataclass(frozen=True)
class Transformer(Workload):
    """A decoder of today: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

    The model of every preset is drawn from the seed; no checkpoint is loaded.
    """

    has_biases = False

    preset: Literal["tiny", "moe-tiny", "gpt2-small", "1b", "3b", "8b", "70b", "auto"] = "tiny"
    """The dimensions to start from: tiny (1 M parameters, for CPUs), moe-tiny (3.4 M in 8 experts a block, as
    much work), gpt2-small (124 M), or a Llama 3. auto: tiny on CPUs; on GPUs the largest whose states, at 16
    bytes a parameter, take up to half of a GPU."""
    seq_len: Count = 128
    """Tokens in one sample."""
    dim: _OptionalCount = None
    """Width of the residual path; null: from the preset, here and below."""
    depth: _OptionalCount = None
    """Number of blocks."""
    heads: _OptionalCount = None
    """Attention heads; they divide dim."""
    kv_heads: _OptionalCount = None
    """Heads of keys and values, shared by groups of attention heads; they divide heads."""
    ffn_dim: _OptionalCount = None
    """Width inside the SwiGLU feed-forward network."""
    vocab_size: _OptionalCount = None
    """Number of token ids."""
    tied: bool | None = None
    """Whether the output head is the embedding."""
    norm_eps: _OptionalPositive = None
    """Epsilon that RMSNorm adds to the mean square."""
    rope_theta: _OptionalPositive = None
    """Base of the rotary frequencies."""
    attention: Literal["full", "sliding_window"] = field(default="full", metadata={"since": 4})
    """full: every position attends to all before it. sliding_window: only to the last ones, see window."""
    window: _OptionalCount = field(default=None, metadata={"since": 4})
    """Positions that each position attends to with sliding_window, including itself."""
    experts: Annotated[int | None, Bound(2)] = field(default=None, metadata={"since": 4})
    """Feed-forward networks of a block, to some of which a router sends each token (Mixtral,
    arXiv:2401.04088). null: from the preset, all but moe-tiny have one network for all tokens."""
    top_k: _OptionalCount = field(default=None, metadata={"since": 4})
    """Experts that each token takes, weighted by the softmax over those; of one alone over all, as in Switch
    (arXiv:2101.03961), or the router would learn nothing. null: from the preset, or 2."""
    capacity_factor: _OptionalPositive = field(default=None, metadata={"since": 4})
    """Maximum tokens of an expert, as a multiple of its even share of a sample's tokens; the others are
    dropped. null: from the preset; all presets drop nothing."""

    @property
    def shape(self) -> DataShape:
        return DataShape("tokens", self.seq_len, self.decoder_dimensions.vocab_size)

    @property
    def decoder_dimensions(self) -> Dimensions:
        # tiny until the machine is known
        preset = PRESETS["tiny" if self.preset == "auto" else self.preset]
        given = {name: getattr(self, name) for name in asdict(preset)}
        return replace(preset, **{name: value for name, value in given.items() if value is not None})

    def resolved_for(self, machine: Machine) -> Transformer:
        """The workload with ``auto`` resolved to a preset for *machine*.

        A model of a million parameters keeps a GPU waiting for its next kernel: it would rank strategies by
        the number of launches. gpt2-small is for GPUs with less or unknown memory (as on a login node).
        """
        return replace(self, preset=_preset_for(machine)) if self.preset == "auto" else self

    def problem(self) -> str | None:
        return (
            "; ".join(
                [*self.decoder_dimensions.problems(), *self._window_problems(), *self._expert_problems()]
            )
            or None
        )

    def with_length(self, length: int) -> Transformer:
        return replace(self, seq_len=length)

    def variable_length_problem(self) -> str | None:
        factor = self.decoder_dimensions.capacity_factor
        return (
            None if factor is None else f"capacity_factor = {factor}: experts have room for a share of a row"
        )

    def parameters(self) -> int:
        return self.decoder_dimensions.parameters()

    def tensor_shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self.decoder_dimensions.tensor_shapes())

    def module_calls(self) -> ModuleCall:
        return parting.module_calls(self.decoder_dimensions)

    def reduced_options(self) -> Iterator[dict[str, int]]:
        """Yield shorter rows, then fewer layers, then fewer token ids; kernels and shards see the width.

        A window keeps its fraction of a row, so that it is still a window.
        """
        for sizes in self._reduced_sizes():
            if self.window is not None:
                sizes["window"] = max(1, self.window * sizes["seq_len"] // self.seq_len)
            yield sizes

    def _reduced_sizes(self) -> Iterator[dict[str, int]]:
        shape = self.decoder_dimensions
        seq_len, depth, vocab_size = self.seq_len, shape.depth, shape.vocab_size
        for length in _halvings(seq_len, _SHORT_SEQ_LEN):
            yield {"seq_len": (seq_len := length)}
        for layers in _halvings(depth, _MIN_DEPTH):
            yield {"seq_len": seq_len, "depth": (depth := layers)}
        for length in _halvings(seq_len, _MIN_SEQ_LEN):
            yield {"seq_len": (seq_len := length), "depth": depth}
        for ids in _halvings(vocab_size, _MIN_VOCAB):
            yield {"seq_len": seq_len, "depth": depth, "vocab_size": ids}

    def flops_per_sample(self) -> int:
        """``T * (6 N + 12 L H Q T)`` (PaLM, arXiv 2204.02311, appendix B).

        T tokens, L blocks, H heads of width Q. N counts every parameter that a token is
        multiplied with: all of ``parameters()`` but an untied input embedding, which is a lookup;
        a tied embedding counts once, as the head. That is torchtitan's N; Ray and llm-foundry
        keep the untied embedding in. Nothing is deducted for causal masking or added for
        recomputation. Under a sliding window a position attends to ``window`` others in place of T.
        Only the experts that a token takes count, whatever their capacity.
        """
        shape = self.decoder_dimensions
        lookup = 0 if shape.tied else shape.vocab_size * shape.dim
        others = shape.depth * (shape.block_parameters() - shape.active_parameters())
        attention = 12 * shape.depth * shape.heads * shape.head_dim * self._attended_positions
        return self.seq_len * (6 * (shape.parameters() - lookup - others) + attention)

    def recomputed_flops_per_sample(self) -> int:
        """``T L (2 N + 4 H Q T)``: a third of ``flops_per_sample`` in the blocks alone.

        N counts the parameters of a block except the last matrix of its SwiGLU, whose product the backward
        pass does not need; it needs that of experts, as the router's weights multiply it. Embedding, last
        norm and head are never recomputed.
        """
        shape = self.decoder_dimensions
        multiplied = shape.active_parameters()
        multiplied -= shape.dim * shape.ffn_dim if shape.experts is None else 0
        attention = 4 * shape.heads * shape.head_dim * self._attended_positions
        return self.seq_len * shape.depth * (2 * multiplied + attention)

    def operations(self, split: RowSplit) -> ModelOperations | None:
        dims = self.decoder_dimensions
        # experts get as many tokens as their routers send them, and a window is a mask of all positions
        has_formula = dims.experts is None and dims.window is None
        return model_operations(dims, self.seq_len, split) if has_formula else None

    def tensor_splits(self) -> TensorSplits:
        return parting.tensor_splits(self.decoder_dimensions, self.seq_len)

    def expert_layers(self) -> ExpertLayers | None:
        return parting.expert_layers(self.decoder_dimensions, self.seq_len)

    def pipeline_stages(self) -> PipelineStages:
        return parting.pipeline_stages(self.decoder_dimensions, self.seq_len)

    def context_split(self) -> ContextSplit:
        return parting.context_split(self.decoder_dimensions, self.seq_len)

    def build_stage(self, module: nn.Module, layers: range) -> nn.Module:
        from distbench.workloads._decoder import Decoder, DecoderStage

        assert isinstance(module, Decoder), "stages are cut from the plain module"
        return DecoderStage(module, layers, self.seq_len)

    def shard_sequence(
        self, module: nn.Module, positions: torch.Tensor, wrap_attention: AttentionWrapper
    ) -> None:
        from distbench.workloads._decoder import Attention, Decoder

        assert isinstance(module, Decoder), "rows are cut for the plain module"
        module.positions = positions
        for part in module.modules():
            if isinstance(part, Attention):
                part.attend = wrap_attention(part.attend)

    def module(self) -> nn.Module:
        from distbench.workloads._decoder import Decoder

        return Decoder(self.decoder_dimensions)

    def layers(self, module: nn.Module) -> list[nn.Module]:
        blocks: Any = module.blocks
        return list(blocks.children())

    def loss(self, module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return cross_entropy(model_output(module, batch, ("input_ids",)), batch["labels"])

    def _expert_problems(self) -> Iterator[str]:
        given = [name for name in ("top_k", "capacity_factor") if getattr(self, name) is not None]
        if given and self.decoder_dimensions.experts is None:
            yield f"{' and '.join(given)}: the model has no experts; set experts, or preset: moe-tiny"

    def _window_problems(self) -> Iterator[str]:
        if self.attention == "sliding_window" and self.window is None:
            yield (
                "attention = sliding_window needs a window; set window, for example "
                f"{max(1, self.seq_len // 4)}"
            )
        if self.attention == "full" and self.window is not None:
            yield (
                f"window = {self.window} only applies to sliding-window attention; set attention: "
                "sliding_window"
            )

    @property
    def _attended_positions(self) -> int:
        """Positions that each one attends to, with nothing deducted for those before the first."""
        return min(self.seq_len, self.window or self.seq_len)


def _preset_for(machine: Machine) -> Any:
    if machine.device == "cpu":
        return "tiny"
    half = (machine.device_memory or 0) / 2
    large = [name for name, shape in PRESETS.items() if shape.parameters() * _ADAMW_STATE_BYTES <= half]
    return max(["gpt2-small", *large], key=lambda name: PRESETS[name].parameters())


def _halvings(size: int, minimum: int) -> Iterator[int]:
    """Halves of *size*, again and again, down to *minimum*."""
    while size > minimum:
        size = max(minimum, size // 2)
        yield size

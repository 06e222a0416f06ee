"""Cards of ZeRO's stages."""

from __future__ import annotations

from dataclasses import replace

from distbench.strategies.description import ALL_STATES_TEXT, ZERO_PAPER, Card, Claim

_DOCS = "https://deepspeed.readthedocs.io/en/stable/zero3.html"
_AS_DDP = "2 x the parameters per step, like DDP: "
_SUMS = "DeepSpeed sums bf16 gradients in fp32, which takes {} more; grad_accum_dtype: bf16 avoids it."

STAGES = (
    Card(
        shards="nothing",
        claims=(
            Claim("shards", "Nothing: all model states are replicated.", ZERO_PAPER),
            Claim("moves", _AS_DDP + "an all-reduce of the gradients.", ZERO_PAPER),
            Claim("keeps", ALL_STATES_TEXT, ZERO_PAPER),
            Claim("use it if", "the model fits on one device, and you want other features of DeepSpeed."),
        ),
    ),
    Card(
        shards="optimizer",
        claims=(
            Claim("shards", "Optimizer state: each rank updates its part of the parameters.", _DOCS),
            Claim("moves", _AS_DDP + "a reduce-scatter and an all-gather.", ZERO_PAPER),
            Claim(
                "keeps",
                "With Adam in mixed precision 4 + 12 / ranks bytes per parameter instead of 16; DeepSpeed "
                "keeps less without accumulation, as only that needs unsharded gradients. "
                + _SUMS.format("4"),
                ZERO_PAPER,
            ),
            Claim("use it if", "parameters and gradients fit on one device, but optimizer state does not."),
        ),
    ),
    Card(
        shards="optimizer, gradients",
        claims=(
            Claim("shards", "Optimizer state, and the gradients of each rank's part of it.", _DOCS),
            Claim(
                "moves", _AS_DDP + "a reduce-scatter (after each micro-batch) and an all-gather.", ZERO_PAPER
            ),
            Claim(
                "keeps",
                "With Adam in mixed precision 2 + 14 / ranks bytes per parameter instead of 16. "
                + _SUMS.format("2 / ranks"),
                ZERO_PAPER,
            ),
            Claim("use it if", "all parameters fit on one device, but gradients and optimizer state do not."),
        ),
    ),
    Card(
        shards="all",
        claims=(
            Claim(
                "shards",
                "All model states; parameters are all-gathered and freed in the forward and backward pass.",
                _DOCS,
            ),
            Claim(
                "moves",
                "Up to 1.5 x what DDP moves: two all-gathers of the parameters and a reduce-scatter.",
                ZERO_PAPER,
            ),
            Claim(
                "keeps",
                "With Adam in mixed precision 16 / ranks bytes per parameter. " + _SUMS.format("2 / ranks"),
                ZERO_PAPER,
            ),
            Claim("use it if", "not even the parameters fit on one device."),
        ),
    ),
)
OFFLOAD = Claim(
    "offload",
    "Offloaded states are in host memory: a device keeps less, and waits for the host.",
    "https://www.deepspeed.ai/tutorials/zero-offload/",
)
_ZEROPP = "https://arxiv.org/abs/2306.10209"
HPZ = Card(
    shards="all; parameters again in groups",
    claims=(
        Claim(
            "shards",
            "All model states over all ranks; the parameters a second time over a group of neighbouring "
            "ranks, from their first use in a step to the update (hpZ of ZeRO++).",
            _ZEROPP,
        ),
        Claim(
            "moves",
            "As many bytes as stage 3, but the backward pass's all-gather stays inside the group: two thirds "
            "remain between nodes.",
            _ZEROPP,
        ),
        Claim(
            "keeps",
            "With Adam in mixed precision 16 / ranks + 2 / group bytes per parameter. "
            + _SUMS.format("2 / ranks"),
            _ZEROPP,
        ),
        Claim(
            "use it if",
            "stage 3 waits for all-gathers between nodes, and a node has room for a second copy of the "
            "parameters.",
            _ZEROPP,
        ),
    ),
)
_MICS = "https://arxiv.org/abs/2205.00119"
_PIPELINE_DOCS = "https://deepspeed.readthedocs.io/en/latest/pipeline.html"
_MEGATRON = "https://arxiv.org/abs/1909.08053"
MICS = Card(
    shards="all, in groups",
    claims=(
        Claim(
            "shards",
            "All model states over a group of neighbouring ranks, with a replica in each group (MiCS).",
            _MICS,
        ),
        Claim(
            "moves",
            "As many bytes as stage 3, but inside a group; between groups, the gradients of a shard, once "
            "per step.",
            _MICS,
        ),
        Claim(
            "keeps",
            "With Adam in mixed precision 16 / group bytes per parameter. " + _SUMS.format("2 / group"),
            _MICS,
        ),
        Claim(
            "use it if",
            "you must stay with a DeepSpeed that has it, and a node has room for the whole training state.",
        ),
    ),
)
TENSOR_PARALLEL = Card(
    shards="blocks, and those of its stage",
    claims=(
        Claim(
            "shards",
            "The linear layers of each block are split across neighbouring ranks, which process the same "
            "samples (AutoTP); ZeRO shards the states of its stage across the data-parallel ranks.",
            "https://www.deepspeed.ai/tutorials/autotp-training",
        ),
        Claim(
            "moves",
            "Activations between tensor-parallel ranks, seven times per block, as each layer's input "
            "gradient is reduced separately; between data-parallel ranks its stage's traffic, for a part of "
            "the model.",
            _MEGATRON,
        ),
        Claim(
            "keeps",
            "A block's model states divided by the tensor-parallel ranks, then as in its stage; embedding, "
            "norms and head are not split.",
            _MEGATRON,
        ),
        Claim(
            "use it if",
            "you already train with DeepSpeed, and a layer is too large for one device or there are more "
            "devices than samples in the batch.",
        ),
    ),
)
PIPELINE = Card(
    shards="whole layers, and those of its stage",
    claims=(
        Claim(
            "shards",
            "The layers: each rank has some (PipelineModule), and all ranks of a pipeline "
            "process the same samples; across ranks with the same layers stage 1 shards the optimizer state, "
            "and stage 0 nothing.",
            _PIPELINE_DOCS,
        ),
        Claim(
            "moves",
            "Activations of every sample across each stage boundary, and equally large gradients back; "
            "between ranks with the same layers its stage's traffic, for a part of the model.",
            _PIPELINE_DOCS,
        ),
        Claim(
            "keeps",
            "The model states of its layers, as its stage keeps them. The bubble is (p - 1) / (m + p - 1) of "
            "the step for p ranks and m micro-batches, and activations of at most p micro-batches are kept.",
            "https://arxiv.org/abs/2104.04473",
        ),
        Claim(
            "use it if",
            "you already train with DeepSpeed, the model is too large for one device, links between devices "
            "are slow (only activations cross them), and the batch is large enough for many micro-batches.",
        ),
    ),
)


def stage_card(stage: int, *, offloads: bool, has_copy: bool) -> Card:
    """Card of a *stage* of ZeRO.

    *offloads*: it offloads to the host. *has_copy*: it has the secondary copy of hpZ's groups.
    """
    own = HPZ if has_copy else STAGES[stage]
    return replace(own, claims=(*own.claims, OFFLOAD)) if offloads else own

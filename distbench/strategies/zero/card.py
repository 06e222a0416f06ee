"""What ZeRO shards, moves and keeps by theory, by its stage."""

from __future__ import annotations

from dataclasses import replace

from distbench.strategies.description import ALL_STATES, ZERO_PAPER, Card, Claim

_DOCS = "https://deepspeed.readthedocs.io/en/stable/zero3.html"
_AS_DDP = "2 x the parameters per step, as DDP: "

STAGES = (
    Card(
        shards="nothing",
        claims=(
            Claim("shards", "Nothing: every rank keeps all model states.", ZERO_PAPER),
            Claim("moves", _AS_DDP + "gradients are all-reduced.", ZERO_PAPER),
            Claim("keeps", ALL_STATES, ZERO_PAPER),
            Claim("take it if", "the model fits on one device, and other features of DeepSpeed are wanted."),
        ),
    ),
    Card(
        shards="optimizer",
        claims=(
            Claim("shards", "Optimizer state: each rank updates its part of the parameters.", _DOCS),
            Claim("moves", _AS_DDP + "a reduce-scatter and an all-gather.", ZERO_PAPER),
            Claim(
                "keeps",
                "With Adam in mixed precision 4 + 12 / ranks bytes per parameter instead of 16; in DeepSpeed "
                "less without accumulation, which alone needs whole gradients.",
                ZERO_PAPER,
            ),
            Claim("take it if", "parameters and gradients fit on one device, the optimizer state does not."),
        ),
    ),
    Card(
        shards="optimizer, gradients",
        claims=(
            Claim(
                "shards", "Optimizer state, and the gradients that belong to each rank's part of it.", _DOCS
            ),
            Claim(
                "moves", _AS_DDP + "a reduce-scatter (after each micro-batch) and an all-gather.", ZERO_PAPER
            ),
            Claim(
                "keeps",
                "With Adam in mixed precision 2 + 14 / ranks bytes per parameter instead of 16.",
                ZERO_PAPER,
            ),
            Claim("take it if", "all parameters fit on one device, gradients and optimizer state do not."),
        ),
    ),
    Card(
        shards="all",
        claims=(
            Claim(
                "shards",
                "All model states; parameters are gathered and freed again in the forward and backward pass.",
                _DOCS,
            ),
            Claim(
                "moves",
                "Up to 1.5 x what DDP moves: two all-gathers of the parameters and a reduce-scatter.",
                ZERO_PAPER,
            ),
            Claim("keeps", "With Adam in mixed precision 16 / ranks bytes per parameter.", ZERO_PAPER),
            Claim("take it if", "not even the parameters fit on one device."),
        ),
    ),
)
OFFLOAD = Claim(
    "offload",
    "What is offloaded stands in the memory of the host: a device keeps less, and waits for the host.",
    "https://www.deepspeed.ai/tutorials/zero-offload/",
)
_ZEROPP = "https://arxiv.org/abs/2306.10209"
SECONDARY = Card(
    shards="all, and a copy in groups",
    claims=(
        Claim(
            "shards",
            "All model states over all ranks; the parameters once more over a group of neighbours, from "
            "their first use in a step to the update (hpZ of ZeRO++).",
            _ZEROPP,
        ),
        Claim(
            "moves",
            "As many bytes as stage 3, of which the backward pass's all-gather stays inside the group: "
            "between nodes two thirds are left.",
            _ZEROPP,
        ),
        Claim(
            "keeps",
            "With Adam in mixed precision 16 / ranks + 2 / group bytes per parameter.",
            _ZEROPP,
        ),
        Claim(
            "take it if",
            "stage 3 waits for gathers between nodes, and a node has room for the parameters once more.",
            _ZEROPP,
        ),
    ),
)
_MICS = "https://arxiv.org/abs/2205.00119"
_PIPELINE_DOCS = "https://deepspeed.readthedocs.io/en/latest/pipeline.html"
_MEGATRON = "https://arxiv.org/abs/1909.08053"
GROUPS = Card(
    shards="all, in groups",
    claims=(
        Claim(
            "shards",
            "All model states over a group of neighbouring ranks; every group has a copy (MiCS).",
            _MICS,
        ),
        Claim(
            "moves",
            "As many bytes as stage 3, inside a group; between groups the gradients of a shard, once a step.",
            _MICS,
        ),
        Claim("keeps", "With Adam in mixed precision 16 / group bytes per parameter.", _MICS),
        Claim(
            "take it if",
            "you must stay with a DeepSpeed that has it, and a node has room for the whole training state.",
        ),
    ),
)
SPLIT = Card(
    shards="blocks, and as its stage",
    claims=(
        Claim(
            "shards",
            "The linear layers of each block are cut over neighbouring ranks, which work on the same rows "
            "(AutoTP); over the others ZeRO shards what its stage says.",
            "https://www.deepspeed.ai/tutorials/autotp-training",
        ),
        Claim(
            "moves",
            "Between ranks with the same rows activations, seven times a block, as each layer's gradient is "
            "summed by itself; between the others what its stage moves, of a part of the model.",
            _MEGATRON,
        ),
        Claim(
            "keeps",
            "A block's model states divided by the ranks that cut it, then as its stage; embedding, norms "
            "and head whole.",
            _MEGATRON,
        ),
        Claim(
            "take it if",
            "you train with DeepSpeed already, and a layer is too large for one device or there are more "
            "devices than the batch has samples for.",
        ),
    ),
)
PIPELINE = Card(
    shards="whole layers, and as its stage",
    claims=(
        Claim(
            "shards",
            "The row of layers: each rank has some (PipelineModule), and works on the same rows as those "
            "with the others; over ranks with the same layers stage 1 shards the optimizer state, and stage "
            "0 nothing.",
            _PIPELINE_DOCS,
        ),
        Claim(
            "moves",
            "Activations of every sample over each border between stages, and as many gradients back; "
            "between ranks with the same layers what its stage moves, of a part of the model.",
            _PIPELINE_DOCS,
        ),
        Claim(
            "keeps",
            "The model states of its layers, as its stage has them. A rank waits (p - 1) / (m + p - 1) of "
            "the step for p ranks and m micro-batches, and keeps activations of p micro-batches at most.",
            "https://arxiv.org/abs/2104.04473",
        ),
        Claim(
            "take it if",
            "you train with DeepSpeed already, the model is too large for one device, and links between "
            "devices are slow, which only activations cross; and the batch is large enough for many "
            "micro-batches.",
        ),
    ),
)


def card(stage: int, *, offloads: bool, has_copy: bool) -> Card:
    """Card of a *stage* of ZeRO, which *offloads* to the host or not, and *has_copy* for hpZ's groups."""
    own = SECONDARY if has_copy else STAGES[stage]
    return replace(own, claims=(*own.claims, OFFLOAD)) if offloads else own

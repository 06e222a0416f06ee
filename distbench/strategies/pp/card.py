"""What pipeline parallelism shards, moves and keeps by theory."""

from __future__ import annotations

from dataclasses import dataclass

from distbench.strategies.description import TAKE_IT, Card, Claim
from distbench.strategies.pp.schedules import SCHEDULES, Name

_MEGATRON = "https://arxiv.org/abs/2104.04473"
_WAITS: dict[str, str] = {
    "1F1B": "As in GPipe, a rank waits (p - 1) / (m + p - 1) of the step for p ranks and m micro-batches, "
    "but keeps activations of p micro-batches at most.",
    "GPipe": "A rank waits (p - 1) / (m + p - 1) of the step for p ranks and m micro-batches, and keeps "
    "activations of all of them.",
    "Interleaved1F1B": "With v stages on a rank it waits (p - 1) / (v m + p - 1) of the step, and sends v "
    "times as much.",
    "LoopedBFS": "With v stages on a rank it waits (p - 1) / (v m + p - 1) of the step, and keeps "
    "activations of all micro-batches.",
    "InterleavedZeroBubble": "Gradients of weights are computed where a rank would wait.",
    "ZBVZeroBubble": "Each rank has a stage from the front and one from the back; gradients of weights are "
    "computed where it would wait.",
    "DualPipeV": "As ZBVZeroBubble, with forward passes of some micro-batches beside backward passes of "
    "others.",
}


@dataclass(frozen=True)
class _Inside:
    """What a dimension inside each place of a pipeline adds to its card."""

    word: str
    shards: str
    moves: str
    keeps: str
    take: str
    source: str


_INSIDE = {
    "dp_replicate": _Inside(
        "copied",
        "Each place of the pipeline has several ranks with a copy of the same layers, and rows of their own "
        "(DDP).",
        "Gradients of its layers are all-reduced over copies, once a step.",
        "Each copy keeps all model states of its stages.",
        "there are more devices than layers can be cut into stages for, and the states of a stage fit.",
        "https://docs.pytorch.org/docs/stable/distributed.pipelining.html",
    ),
    "dp_shard": _Inside(
        "sharded",
        "Each place of the pipeline has several ranks with rows of their own, over which its layers are "
        "sharded (FSDP2); by default they stay gathered until all micro-batches have passed.",
        "Parameters of its layers are gathered, and their gradients reduce-scattered, once for all "
        "micro-batches of the pipeline.",
        "Of the model states only its shard, and beside it the gathered layers of its stages with whole "
        "gradients, until these are reduced.",
        "stages that are whole don't fit, or there are more devices than stages.",
        "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
    ),
    "tp": _Inside(
        "cut inside",
        "Each place of the pipeline has several ranks that share rows and have a part of each of its layers "
        "(tensor parallelism).",
        "Activations inside each layer are reduced over the ranks that share it.",
        "Of the model states its part, and norms whole.",
        "a layer is too large for one device; cut layers inside a node, where links are fast, and let stages "
        "span nodes.",
        _MEGATRON,
    ),
}


def card_of(schedule: Name, *inside: str) -> Card:
    """Card of the pipeline with *schedule*, and with the dimensions *inside* each of its places."""
    plain = _plain(schedule)
    for name in inside:
        plain = _with(plain, _INSIDE[name])
    return plain


def _with(plain: Card, more: _Inside) -> Card:
    shards, moves, keeps, take = plain.claims
    return Card(
        f"{plain.shards}, {more.word}",
        (
            Claim("shards", f"{shards.text} {more.shards}", more.source),
            Claim("moves", f"{moves.text} {more.moves}", more.source),
            Claim("keeps", f"{keeps.text} {more.keeps}", keeps.source),
            Claim(TAKE_IT, f"{take.text[:-1]}; and {more.take}", more.source),
        ),
    )


def _plain(schedule: Name) -> Card:
    return Card(
        shards="whole layers",
        claims=(
            Claim(
                "shards",
                "The row of layers: each rank has some, with their gradients and optimizer state. Ranks of a "
                "pipeline work on the same rows, one part of the batch after another.",
                _MEGATRON,
            ),
            Claim(
                "moves",
                "Activations of every sample over each border between stages, and as many gradients back.",
                _MEGATRON,
            ),
            Claim("keeps", f"The model states of its layers. {_WAITS[schedule]}", SCHEDULES[schedule].source),
            Claim(
                TAKE_IT,
                "the model is too large for one device, and links between devices are slow, which only "
                "activations cross; and the batch is large enough for many micro-batches.",
                _MEGATRON,
            ),
        ),
    )

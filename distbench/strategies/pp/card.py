"""Cards of pipeline parallelism."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from distbench.strategies.description import USE_IF, Card, Claim
from distbench.strategies.pp.schedules import SCHEDULES, ScheduleName

_MEGATRON = "https://arxiv.org/abs/2104.04473"
_IDLE_TIME: dict[str, str] = {
    "1F1B": "The bubble is (p - 1) / (m + p - 1) of the step for p ranks and m micro-batches, as in GPipe, "
    "but activations of at most p micro-batches are kept.",
    "GPipe": "The bubble is (p - 1) / (m + p - 1) of the step for p ranks and m micro-batches, and "
    "activations of all micro-batches are kept.",
    "Interleaved1F1B": "With v stages per rank the bubble is (p - 1) / (v m + p - 1) of the step, with v "
    "times the traffic.",
    "LoopedBFS": "With v stages per rank the bubble is (p - 1) / (v m + p - 1) of the step, and activations "
    "of all micro-batches are kept.",
    "InterleavedZeroBubble": "Weight gradients are computed where a rank would otherwise be idle.",
    "ZBVZeroBubble": "Each rank has a stage from the front and one from the back; weight gradients are "
    "computed where it would otherwise be idle.",
    "DualPipeV": "Like ZBVZeroBubble, with forward passes of some micro-batches overlapping backward passes "
    "of others.",
}
_PREFERRED: dict[str, str] = {
    "1F1B": "",
    "GPipe": "; with at least as many micro-batches as stages 1F1B is better: the same bubble, and fewer "
    "activations",
    "Interleaved1F1B": "; and the bubble of 1F1B costs more than v times the messages",
    "LoopedBFS": "; and stages are sharded: all micro-batches pass a stage before the next one is gathered",
    "InterleavedZeroBubble": "; and the bubble of Interleaved1F1B is too large, and no layer is recomputed",
    "ZBVZeroBubble": "; and the bubble of 1F1B is too large, its memory just fits, and no layer is "
    "recomputed",
    "DualPipeV": "; and devices can overlap the communication of a micro-batch with the computation of "
    "another (otherwise ZBVZeroBubble has a smaller bubble)",
}
"""Advice on the choice between a schedule and the others."""


@dataclass(frozen=True)
class _MeshAddition:
    """Addition of a further mesh dimension to the card of a pipeline."""

    word: str
    shards: str
    moves: str
    keeps: str
    use_if: str
    source: str


_HYBRID = _MeshAddition(
    "sharded and replicated",
    "Each stage is sharded inside groups of ranks and replicated across groups (HSDP); all of them "
    "process different samples.",
    "Inside a group parameters are all-gathered and gradients reduce-scattered once for all micro-batches of "
    "the pipeline; their shards are all-reduced across groups.",
    "Model states are sharded inside a group, but the unsharded layers of its stages and their unsharded "
    "gradients are kept until the gradients are reduced.",
    "the ranks of a stage span nodes: gather inside nodes, and only all-reduce between them.",
    "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)
"""Addition for both dimensions of data parallelism."""
_MESH_ADDITIONS = {
    "dp_replicate": _MeshAddition(
        "replicated",
        "Each stage is replicated on several ranks, which process different samples (DDP).",
        "Gradients are all-reduced across replicas, once per step.",
        "Each replica keeps all model states of its stages.",
        "there are more devices than possible stages, and the states of a stage fit on a device.",
        "https://docs.pytorch.org/docs/stable/distributed.pipelining.html",
    ),
    "dp_shard": _MeshAddition(
        "sharded",
        "Each stage is sharded across several ranks, which process different samples (FSDP2); by default its "
        "layers stay unsharded until all micro-batches have passed.",
        "Parameters are all-gathered and gradients reduce-scattered once for all micro-batches of the "
        "pipeline.",
        "Model states are sharded, but the unsharded layers of its stages and their unsharded gradients are "
        "kept until the gradients are reduced.",
        "a whole stage does not fit on a device, or there are more devices than stages.",
        "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
    ),
    "tp": _MeshAddition(
        "layers split",
        "The layers of each stage are split across several ranks, which process the same samples (tensor "
        "parallelism).",
        "Activations inside each layer are reduced across the ranks that share it.",
        "Of the model states, only a rank's part is kept, except for norms.",
        "a layer is too large for one device; split layers inside a node, where links are fast, and place "
        "stages on different nodes.",
        _MEGATRON,
    ),
}


def card_for(schedule: ScheduleName, *inside: str) -> Card:
    """Card of the pipeline with *schedule*, and with further mesh dimensions *inside* each of its ranks."""
    added = [_MESH_ADDITIONS[name] for name in inside]
    if {"dp_replicate", "dp_shard"} <= {*inside}:
        added = [_HYBRID, *(_MESH_ADDITIONS[name] for name in inside if name == "tp")]
    return functools.reduce(_extend, added, _schedule_card(schedule))


def _extend(plain: Card, more: _MeshAddition) -> Card:
    shards, moves, keeps, take = plain.claims
    return Card(
        f"{plain.shards}, {more.word}",
        (
            Claim("shards", f"{shards.text} {more.shards}", more.source),
            Claim("moves", f"{moves.text} {more.moves}", more.source),
            Claim("keeps", f"{keeps.text} {more.keeps}", keeps.source),
            Claim(USE_IF, f"{take.text[:-1]}; and {more.use_if}", more.source),
        ),
    )


def _schedule_card(schedule: ScheduleName) -> Card:
    return Card(
        shards="whole layers",
        claims=(
            Claim(
                "shards",
                "The layers: each rank has some, with their gradients and optimizer state. All "
                "ranks of a pipeline process the same samples, one micro-batch after another.",
                _MEGATRON,
            ),
            Claim(
                "moves",
                "Activations of every sample across each stage boundary, and equally large gradients back.",
                _MEGATRON,
            ),
            Claim(
                "keeps", f"The model states of its layers. {_IDLE_TIME[schedule]}", SCHEDULES[schedule].source
            ),
            Claim(
                USE_IF,
                "the model is too large for one device, links between devices are slow (only activations "
                f"cross them), and the batch is large enough for many micro-batches{_PREFERRED[schedule]}.",
                SCHEDULES[schedule].source,
            ),
        ),
    )

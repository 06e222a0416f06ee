"""``throughput``: how much is trained on in a second."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum
from typing import Any

from distbench.core.columns import Column, columns_of
from distbench.metrics.base import COMPUTED_TOKENS, Metric, PassContext, TrialData, Values

_WINDOW = "over the timed window of the slowest rank"


@dataclass(frozen=True)
class Throughput(Metric):
    """Tokens and samples a second of all devices together, and per device."""

    columns = (
        *columns_of("tokens/s", "higher", "first")(
            tokens_per_s=f"Tokens per second of all ranks, all micro-batches included, {_WINDOW}.",
        ),
        Column(
            "samples_per_s", "samples/s", "higher", "first", f"Samples per second of all ranks, {_WINDOW}."
        ),
        *columns_of("tokens/s", "higher", "first")(
            tokens_per_s_per_device="tokens_per_s divided by the world size (torchtitan's tokens/s/GPU).",
            counted_tokens_per_s="Those of tokens_per_s that have a label: padding and prompts are computed, "
            "too. Only where rows have different numbers of labels.",
        ),
        *columns_of("", "higher", "mean", per_step=True)(
            counted_token_share="Share of the tokens of the timed steps that have a label, over all ranks.",
        ),
    )

    def values(self, context: PassContext, state: Any) -> Values:
        counts = [count for count in context.token_counts if count.computed]
        return {"counted_token_share": [count.labels / count.computed for count in counts]} if counts else {}

    def summary(self, trial: TrialData) -> dict[str, float]:
        samples = trial.case.batch.global_batch_size / trial.slowest_mean("step_s")
        tokens = samples * trial.tokens_per_sample
        share = _counted_share(trial)
        counted = {"counted_tokens_per_s": tokens * share, "counted_token_share": share} if share else {}
        return {
            **counted,
            "samples_per_s": samples,
            "tokens_per_s": tokens,
            "tokens_per_s_per_device": tokens / trial.case.world_size,
        }


def _counted_share(trial: TrialData) -> float | None:
    """Share of the tokens of the timed steps that have a label; None: all have, or it is unknown."""
    columns = ("counted_token_share", COMPUTED_TOKENS)
    shares, tokens = ([x for rank in trial.samples.get(name, []) for x in rank] for name in columns)
    pairs = [(share, n) for share, n in zip(shares, tokens, strict=False) if share is not None and n]
    return fsum(share * n for share, n in pairs) / fsum(n for _, n in pairs) if pairs else None

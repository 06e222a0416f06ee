"""``throughput``: how much is trained on in a second."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from distbench.core.columns import Column, columns_of
from distbench.metrics.base import Metric, PassContext, TrialData, Values

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
            counted_token_share="Share of the tokens of a timed step that have a label, mean over ranks.",
        ),
    )

    def values(self, context: PassContext, state: Any) -> Values:
        if not context.counted_labels:
            return {}
        return {
            "counted_token_share": [counted / every for counted, every in context.counted_labels if every]
        }

    def summary(self, trial: TrialData) -> dict[str, float]:
        samples = trial.case.batch.global_batch_size / trial.slowest_mean("step_s")
        tokens = samples * trial.tokens_per_sample
        shares = [x for rank in trial.samples.get("counted_token_share", []) for x in rank if x is not None]
        counted = {"counted_tokens_per_s": tokens * fmean(shares)} if shares else {}
        return {
            **counted,
            "samples_per_s": samples,
            "tokens_per_s": tokens,
            "tokens_per_s_per_device": tokens / trial.case.world_size,
        }

"""``throughput``: how much is trained on in a second."""

from __future__ import annotations

from dataclasses import dataclass

from distbench.core.columns import Column, columns_of
from distbench.metrics.base import Metric, TrialData

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
        ),
    )

    def summary(self, trial: TrialData) -> dict[str, float]:
        samples = trial.case.batch.global_batch_size / trial.slowest_mean("step_s")
        tokens = samples * trial.tokens_per_sample
        return {
            "samples_per_s": samples,
            "tokens_per_s": tokens,
            "tokens_per_s_per_device": tokens / trial.case.world_size,
        }

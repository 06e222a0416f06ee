"""``synthetic``: rows of any kind that are drawn; of tokens the least possible loss is known."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from distbench.core.bounds import Bound
from distbench.data import _clusters
from distbench.data._rows import (
    HELD_OUT_SEED,
    TOKEN_KINDS,
    form_batches,
    step_generator,
    tokens_problem,
    window_length,
)
from distbench.data.base import BatchFunction, DataShape, DataSource, HeldOutMetric, TrainHeldOutSplit

if TYPE_CHECKING:
    import numpy as np

_SLOTS = 4096
# a source takes states x slots in memory
MAX_STATES = 1024


@dataclass(frozen=True)
class Synthetic(DataSource):
    """A seeded source: tokens of a first-order Markov chain, or features or images of classes under noise.

    No model's mean loss of the next token can fall below the entropy rate of the chain.
    """

    states: Annotated[int | None, Bound(2, MAX_STATES)] = None
    """Number of different tokens, 2 to 1024; null: the vocabulary (without the mask of masked tokens), or
    1024 of a larger one. Features and images don't read it, nor concentration."""
    concentration: Annotated[float, Bound(0.001, 1000)] = 0.1
    """Dirichlet concentration of each token's successors: the smaller, the more predictable."""
    source_seed: Annotated[int, Bound(0)] = 0
    """Seed of the source itself, apart from the suite's seed that draws samples from it."""

    def problem(self, shape: DataShape) -> str | None:
        if shape.kind not in TOKEN_KINDS:
            return None
        if shape.ids < 2:
            return f"synthetic needs at least 2 tokens; vocab_size (classes) = {shape.classes}"
        what = "synthetic" if self.states is None else f"states = {self.states}"
        return tokens_problem(what, shape, window_length(shape), self._state_count(shape.ids) - 1)

    def open(self, shape: DataShape, seed: int, batch_size: int) -> BatchFunction:
        import numpy as np

        if shape.kind not in TOKEN_KINDS:
            return _clusters.cluster_batches(shape, seed, self.source_seed)
        states, needed = self._state_count(shape.ids), window_length(shape)
        slots = _slot_table(states, self.concentration, self.source_seed)
        before = np.cumsum(_stationary_distribution(states, self.concentration, self.source_seed))

        def windows(step: int, rows: range) -> np.ndarray:
            random = step_generator(seed, step)
            first = np.searchsorted(before, random.random(batch_size)[rows.start : rows.stop], side="right")
            draws = random.integers(0, _SLOTS, (batch_size, needed - 1), dtype=np.int64)
            return _sample_walks(slots, np.minimum(first, states - 1), draws[rows.start : rows.stop])

        return form_batches(windows, shape, seed, batch_size)

    def held_out_metric(self, shape: DataShape) -> HeldOutMetric:
        if shape.kind not in TOKEN_KINDS:
            return HeldOutMetric(
                "accuracy",
                "",
                "higher",
                "Fraction of fresh rows that are classified correctly.",
                of="accuracy",
            )
        if shape.kind == "masked_tokens":
            doc = "Cross-entropy of the masked tokens of fresh samples, in nats; its minimum is unknown."
            return HeldOutMetric("nats_per_token", "nats/token", "lower", doc)
        doc = (
            "Cross-entropy of fresh samples above the source's entropy rate, in nats per token; 0 is perfect."
        )
        return HeldOutMetric(
            "excess_nats", "nats/token", "lower", doc, floor=self.entropy_rate(shape.classes)
        )

    def split(self, shape: DataShape, seed: int, batch_size: int, held_out: int) -> TrainHeldOutSplit:
        fresh = self.open(shape, HELD_OUT_SEED, held_out)
        return TrainHeldOutSplit(self.open(shape, seed, batch_size), fresh(0, range(held_out)))

    def transitions(self, classes: int) -> np.ndarray:
        """Exact probabilities of each token's successors (states, states), for *classes* ids."""
        return _slot_counts(self._state_count(classes), self.concentration, self.source_seed) / _SLOTS

    def entropy_rate(self, classes: int) -> float:
        """Entropy rate in nats per token: the lowest possible mean loss, for *classes* ids.

        The mean over the stationary distribution of the entropy of a token's successors
        (Cover & Thomas, Elements of Information Theory, theorem 4.2.4).
        """
        import numpy as np

        p = self.transitions(classes)
        entropies = -(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=1)
        stationary = _stationary_distribution(
            self._state_count(classes), self.concentration, self.source_seed
        )
        return float(stationary @ entropies)

    def _state_count(self, classes: int) -> int:
        return min(classes, MAX_STATES) if self.states is None else self.states


def _sample_walks(slots: np.ndarray, first: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Tokens (samples, n + 1) that start at *first* (samples,) and follow *draws* (samples, n)."""
    import numpy as np

    walks = np.empty((len(first), draws.shape[1] + 1), dtype=np.int64)
    walks[:, 0] = first
    for place in range(draws.shape[1]):
        walks[:, place + 1] = slots[walks[:, place], draws[:, place]]
    return walks


@functools.lru_cache(maxsize=4)
def _slot_counts(states: int, concentration: float, seed: int) -> np.ndarray:
    """Number of a token's slots that each successor occupies (states, states).

    Probabilities are integer numbers of slots, so that a draw is one table lookup, and the entropy rate is
    exact. Every token keeps a slot for itself and one for the next token: the chain then has one stationary
    distribution, which it reaches from any state.
    """
    import numpy as np

    random = np.random.default_rng([seed, states])
    weights = np.maximum(random.standard_gamma(concentration, (states, states)), 1e-300)
    counts = random.multinomial(_SLOTS - 2, weights / weights.sum(axis=1, keepdims=True))
    token = np.arange(states)
    counts[token, token] += 1
    counts[token, (token + 1) % states] += 1
    return counts


@functools.lru_cache(maxsize=4)
def _slot_table(states: int, concentration: float, seed: int) -> np.ndarray:
    """Successor in each slot of each token (states, slots)."""
    import numpy as np

    successors = np.arange(states, dtype=np.int16)
    counts = _slot_counts(states, concentration, seed)
    return np.stack([np.repeat(successors, row) for row in counts])


@functools.lru_cache(maxsize=4)
def _stationary_distribution(states: int, concentration: float, seed: int) -> np.ndarray:
    """Long-run share of each token (states,)."""
    import numpy as np

    system = _slot_counts(states, concentration, seed).T / _SLOTS - np.eye(states)
    # one equation follows from the others; it is replaced by: the shares sum to 1
    system[-1] = 1.0
    return np.linalg.solve(system, np.eye(states)[-1])

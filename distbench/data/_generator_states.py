"""States of the global generators of random numbers. Runs in the worker."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


class GeneratorStates:
    """States of the global generators of random, numpy and torch on the CPU."""

    def __init__(self) -> None:
        numpy_state: Any = np.random.get_state()
        self._states = random.getstate(), numpy_state, torch.get_rng_state()

    def restore(self) -> None:
        """Set the generators to these states."""
        random.setstate(self._states[0])
        np.random.set_state(self._states[1])
        torch.set_rng_state(self._states[2])

    def are_current(self) -> bool:
        """True if nothing has drawn from the generators since."""
        (own, own_numpy, own_torch), (now, numpy_now, torch_now) = self._states, GeneratorStates()._states
        is_equal = own == now and torch.equal(own_torch, torch_now)
        return is_equal and own_numpy[2:] == numpy_now[2:] and np.array_equal(own_numpy[1], numpy_now[1])


def seed_generators(seed: int) -> None:
    """Seed the global generators of random, numpy and torch on the CPU."""
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)

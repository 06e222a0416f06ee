"""Simulations make a third of their draws in the default run, and all of them in ``deep``."""

from __future__ import annotations

import pytest


def drawn(full: int) -> pytest.MarkDecorator:
    """Parametrize a test with ``draws``: a third of *full*, and in ``deep`` all of them."""
    return pytest.mark.parametrize(
        "draws", [full // 3, pytest.param(full, marks=[pytest.mark.train, pytest.mark.deep])]
    )

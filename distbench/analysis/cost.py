"""Convert throughput and the price of a device into the time and cost of training.

They are the reciprocal of tokens/s times a constant, so each has its relative spread and interval.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from distbench.analysis.estimate import Estimate
from distbench.core.serialization import decode
from distbench.core.units import format_number
from distbench.suite.cost import DeviceCost

COST_PER_BILLION_TOKENS, TRAINING_HOURS, TRAINING_COST = (
    "cost_per_billion_tokens",
    "training_hours",
    "training_cost",
)
COST_COLUMNS = (COST_PER_BILLION_TOKENS, TRAINING_HOURS, TRAINING_COST)
_BILLION, _HOUR = 1e9, 3600.0
_PRICE = re.compile(r"([0-9.]+)\s*([A-Za-z]{1,8})")


def device_cost(suite: Mapping[str, Any]) -> DeviceCost | None:
    """Device price in a resolved *suite*; None if it has none.

    Raises:
        RecordError: the price is not of the right type.
    """
    cost = suite.get("cost")
    return decode(DeviceCost, cost, "run.json: suite.cost") if cost else None


def with_price(suite: Mapping[str, Any], price: str) -> dict[str, Any]:
    """*suite* with the *price* per device-hour, such as ``2.5 USD``, instead of its own.

    Raises:
        ValueError: *price* is malformed.
    """
    match = _PRICE.fullmatch(price.strip())
    try:
        amount = float(match[1]) if match else 0.0
    except ValueError:
        amount = 0.0
    if not match or not amount:
        raise ValueError("expected a price above 0 with a currency, such as '2.5 USD'")
    cost = suite.get("cost") or {}
    return {
        **suite,
        "cost": {**asdict(DeviceCost(amount, match[2])), **{k: cost[k] for k in ("tokens",) if k in cost}},
    }


def column_descriptions(cost: DeviceCost) -> dict[str, dict[str, Any]]:
    """Columns of the prices of a case, described as in a record."""
    whole = f"the whole training ({format_number(cost.tokens)} tokens)"
    price = f"at {format_number(cost.per_device_hour)} {cost.currency} per device-hour"
    descriptions = {
        COST_PER_BILLION_TOKENS: (
            cost.currency,
            f"Cost of 1e9 tokens {price}: devices x price x 1e9 / tokens/s.",
        ),
        TRAINING_HOURS: ("h", f"Duration of {whole} in hours: tokens / tokens/s."),
        TRAINING_COST: (cost.currency, f"Cost of {whole} {price}."),
    }
    return {
        name: {"unit": unit, "better": "lower", "over_ranks": "first", "doc": doc}
        for name, (unit, doc) in descriptions.items()
    }


def cost_estimates(speed: Estimate, devices: int, cost: DeviceCost) -> dict[str, Estimate]:
    """Costs of a case that trains at *speed* tokens per second on *devices*; empty if that is 0."""
    if min(speed.trials, default=0.0) <= 0:
        return {}
    per_token = devices * cost.per_device_hour / _HOUR
    factors = {
        COST_PER_BILLION_TOKENS: per_token * _BILLION,
        TRAINING_HOURS: cost.tokens / _HOUR,
        TRAINING_COST: per_token * cost.tokens,
    }
    return {name: _divided_by(speed, factor) for name, factor in factors.items()}


def _divided_by(speed: Estimate, factor: float) -> Estimate:
    """*factor* over *speed*."""
    interval = speed.interval and replace(speed.interval, value=factor / speed.interval.value)
    trials = tuple(factor / trial for trial in speed.trials)
    low, high = factor / speed.high, factor / speed.low
    return replace(speed, value=factor / speed.value, low=low, high=high, trials=trials, interval=interval)

"""``cost``: price of a device, for a run's numbers in money."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from distbench.core.bounds import Bound, Positive


@dataclass(frozen=True)
class DeviceCost:
    """Price of a device. It changes no measurement, and can be replaced when a run is shown."""

    per_device_hour: Positive
    """Price of one device for an hour, with its share of the host."""
    currency: str = "USD"
    """Letters of the currency, such as USD or EUR."""
    tokens: Annotated[float, Bound(0, 1e18, open_low=True)] = 1e9
    """Tokens of the whole training, for which its hours and its price are shown."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z]{1,8}", self.currency):
            raise ValueError("currency must be 1 to 8 letters, such as USD")

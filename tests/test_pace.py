"""One law of pace: a trial lasts as long as its slowest rank, and step time and throughput say the same."""

from __future__ import annotations

import pytest
from records import case

from distbench.metrics.base import Absent, Trial
from distbench.metrics.steptime import StepTime
from distbench.metrics.throughput import Throughput

DDP = case("ddp")


def trial(*ranks: list[float | None]) -> Trial:
    return Trial(DDP, tokens_per_sample=16, samples={"step_s": list(ranks)}, phases={})


def test_ranks_that_take_turns_in_being_late_are_not_added_up() -> None:
    loose = trial([1.0, 3.0, 1.0], [3.0, 1.0, 2.0])
    # the second rank ends last, after 6 s; the slowest rank of each step would make 8
    assert StepTime().summary(loose)["step_s"] == 2.0
    assert Throughput().summary(loose)["samples_per_s"] == 8 / 2.0


def test_a_step_that_one_rank_lacks_gives_no_number() -> None:
    with pytest.raises(Absent):
        Throughput().summary(trial([1.0, 1.0], [1.0, None]))

"""One law of pace: a trial lasts as long as its slowest rank, and step time and throughput say the same."""

import dataclasses
from typing import Any

import pytest

from distbench.analysis.comparison import compare_cases
from distbench.metrics.base import NotAvailable, TrialData
from distbench.metrics.steptime import StepTime
from distbench.metrics.throughput import Throughput
from support.records import COLUMNS, case, measured, run_of

DDP = case("ddp")


def trial(*ranks: list[float | None]) -> TrialData:
    return TrialData(DDP, tokens_per_sample=16, samples={"step_s": list(ranks)}, phases={})


def test_ranks_that_take_turns_in_being_late_are_not_added_up():
    loose = trial([1.0, 3.0, 1.0], [3.0, 1.0, 2.0])
    # the second rank ends last, after 6 s; the slowest rank of each step would make 8
    assert StepTime().summary(loose)["step_s"] == 2.0
    assert Throughput().summary(loose)["samples_per_s"] == 8 / 2.0


def test_a_step_that_one_rank_lacks_gives_no_number():
    with pytest.raises(NotAvailable):
        Throughput().summary(trial([1.0, 1.0], [1.0, None]))


def step_time_cases(*trials: tuple[float, float]) -> Any:
    """The summaries of a run of one case, whose trials had these paces and step times."""
    columns = {**COLUMNS, "step_s": {"unit": "s", "better": "lower", "over_ranks": "max", "doc": "Step."}}
    made = [measured(DDP, pace, round_=i, step_s=step) for i, (pace, step) in enumerate(trials)]
    return run_of(*(dataclasses.replace(each, columns=columns) for each in made)).cases


def test_a_change_of_the_step_is_that_of_the_throughput_whatever_the_number_of_trials():
    # the middle of two step times is not the step time at the middle of two throughputs
    before = step_time_cases(*((pace, 128 / pace) for pace in (1000.0, 2000.0)))
    after = step_time_cases(*((pace, 128 / pace) for pace in (1400.0, 1600.0)))
    (pair,) = compare_cases(before, after)
    pace, step = pair.change("tokens_per_s"), pair.change("step_s")
    assert pace and step
    assert (step.ratio.half_log_width, step.word) == (pace.ratio.half_log_width, pace.word)
    assert step.ratio.value == pytest.approx(1 / pace.ratio.value)


def test_step_times_that_do_not_belong_to_the_throughput_keep_their_own_change():
    (pair,) = compare_cases(
        step_time_cases((1000.0, 0.5), (2000.0, 0.7)), step_time_cases((1000.0, 1.0), (2000.0, 1.4))
    )
    step, pace = pair.change("step_s"), pair.change("tokens_per_s")
    assert step and pace
    assert (step.ratio.value, pace.ratio.value) == pytest.approx((2.0, 1.0))

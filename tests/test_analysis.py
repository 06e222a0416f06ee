"""What records say together: medians over trials, ratios, and sentences that claim no more than that."""

from __future__ import annotations

import json

import pytest
from records import case, failed, info, measured, unsupported

from distbench.analysis.scaling import scaling
from distbench.analysis.summary import summarise, to_json
from distbench.analysis.words import sentences
from distbench.case import Batch

DDP, FSDP = case("ddp"), case("fsdp")


def test_a_number_is_the_median_over_trials_with_its_range() -> None:
    records = [measured(DDP, value, round_=i) for i, value in enumerate([90.0, 100.0, 130.0])]
    (row,) = summarise(info(DDP), records)
    found = row.values["tokens_per_s"]
    assert (found.value, found.low, found.high, found.n) == (100, 90, 130, 3)
    assert found.spread == pytest.approx(0.2)


def test_one_trial_has_no_spread() -> None:
    (row,) = summarise(info(DDP), [measured(DDP)])
    assert row.values["tokens_per_s"].spread is None


def test_throughput_is_relative_to_ddp_at_the_same_world_size() -> None:
    rows = summarise(info(DDP, FSDP), [measured(DDP, 200), measured(FSDP, 50)])
    assert [row.relative for row in rows] == [1, 0.25]


def test_nothing_is_relative_to_a_ddp_that_did_other_work() -> None:
    other = case("ddp", batch=Batch(16, 8, 1))
    rows = summarise(info(other, FSDP), [measured(other), measured(FSDP)])
    assert rows[1].relative is None


def test_a_case_without_a_record_is_pending() -> None:
    (row,) = summarise(info(DDP), [])
    assert row.status == "pending"


def test_a_case_with_one_good_trial_is_measured_and_says_how_many_failed() -> None:
    (row,) = summarise(info(DDP), [failed(DDP), measured(DDP, round_=1)])
    assert (row.status, row.trials, row.failed) == ("measured", 1, 1)
    assert "1 of 2 trials failed" in row.reason


def test_losses_begin_with_the_warm_up_and_are_the_mean_over_ranks() -> None:
    (row,) = summarise(info(DDP), [measured(DDP)])
    assert row.losses == [4.0, 3.0, 2.5]


def test_a_summary_is_valid_json_even_where_a_number_was_not_finite() -> None:
    document = to_json(info(DDP), summarise(info(DDP), [measured(DDP, final_loss=float("nan"))]))
    shown = json.loads(json.dumps(document, allow_nan=False))
    assert "final_loss" not in shown["cases"][0]["values"]


def test_efficiency_is_throughput_over_n_times_that_of_one_device() -> None:
    one = case("ddp", 1)
    (points,) = scaling(summarise(info(one, DDP), [measured(one, 100), measured(DDP, 150)])).values()
    assert [(point.world_size, point.efficiency) for point in points] == [(1, 1.0), (2, 0.75)]


def test_without_one_device_there_is_no_efficiency() -> None:
    assert scaling(summarise(info(DDP), [measured(DDP)])) == {}


@pytest.mark.parametrize(
    ("ddp", "fsdp", "told"),
    [
        ([200, 210], [100, 110], "1.95 times fsdp"),
        ([200, 100], [150, 160], "within the spread"),
        ([200], [100], "may be noise"),
    ],
)
def test_a_lead_is_claimed_only_as_far_as_the_trials_bear_it(
    ddp: list[float], fsdp: list[float], told: str
) -> None:
    records = [measured(c, v, round_=i) for c, vs in ((DDP, ddp), (FSDP, fsdp)) for i, v in enumerate(vs)]
    assert told in sentences(summarise(info(DDP, FSDP), records))[0]


def test_what_failed_and_what_can_not_run_is_said_with_the_reason() -> None:
    said = "\n".join(sentences(summarise(info(DDP, FSDP), [failed(DDP, "it broke"), unsupported(FSDP)])))
    assert "Failed: ddp/ws2/mb4/fp32: crashed: it broke" in said
    assert "Unsupported here: fsdp/ws2/mb4/fp32: needs a GPU" in said

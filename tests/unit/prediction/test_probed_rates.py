"""Rates of a probe: durations between and beyond what was measured, and which probe counts."""

import dataclasses
import math
from typing import Any

import pytest

from distbench.core.case import OptimizerConfig, PluginChoice
from distbench.core.machine import Machine
from distbench.prediction.probed_rates import Duration, DurationCurve, ProbedGroup, ProbedRates, probed_rates
from distbench.record import Status
from support.probes import probe_of, probe_rows, rate_row
from support.records import case, job_of


def curve(points: dict[float, float]) -> DurationCurve:
    """Curve through durations in seconds by amounts, each with a spread of 1 %."""
    listed = sorted(points.items())
    return DurationCurve([(amount, Duration(seconds, 0.01)) for amount, seconds in listed])


@pytest.mark.parametrize(
    ("amount", "seconds"),
    [
        (2, 3.0),
        # between two points on the line
        (3, 4.0),
        (6, 7.0),
        # a launch costs what it does: one sample takes more than half of two
        (1, 2.0),
        # beyond the largest on the line of the last two
        (16, 17.0),
    ],
)
def test_durations_are_on_the_line_through_what_was_measured(amount, seconds):
    found = curve({2: 3.0, 4: 5.0, 8: 9.0}).at(amount)
    assert found.seconds == pytest.approx(seconds)
    assert found.relative_sd == 0.01


def test_less_work_takes_neither_more_time_nor_less_than_its_share():
    falling, steep = curve({2: 3.0, 4: 2.5}), curve({2: 1.0, 4: 4.0})
    assert falling.at(1).seconds == pytest.approx(3.0)
    assert steep.at(1).seconds == pytest.approx(0.5)
    assert falling.at(8).seconds == pytest.approx(2.5)
    assert steep.at(8).seconds == pytest.approx(8.0)


def test_one_point_is_scaled_upward_only():
    assert curve({4: 2.0}).at(8).seconds == pytest.approx(4.0)
    assert curve({4: 2.0}).at(1).seconds == pytest.approx(2.0)


PAIR = ProbedGroup(2)
ROWS = [
    rate_row("forward_backward", 2, 0.01),
    rate_row("forward_backward", 8, 0.04),
    rate_row("update", 1000, 0.002),
    rate_row("collective", 4096, 0.001, "all_reduce"),
    rate_row("collective", 4 << 20, 0.005, "all_reduce"),
    rate_row("collective", 4096, 0.002, "send_recv"),
    rate_row("collective_in_step", 4096, 0.004, "all_reduce"),
    rate_row("collective_in_step", 4 << 20, 0.009, "all_reduce"),
]


def test_an_operation_measured_alone_pays_for_the_meeting_of_others():
    rates = ProbedRates.from_rows(ROWS)
    assert isinstance(rates, ProbedRates)
    measured = rates.duration_between_layers("all_reduce", PAIR, 4096)
    assert measured and measured.seconds == pytest.approx(0.004)
    other = rates.duration_between_layers("send_recv", PAIR, 4096)
    # 2 ms alone, and the 3 ms by which an all-reduce takes longer between layers
    assert other and other.seconds == pytest.approx(0.005)
    assert rates.duration_between_layers("broadcast", PAIR, 4096) is None
    assert rates.duration_between_layers("all_reduce", ProbedGroup(4), 4096) is None


def test_an_operation_measured_at_one_size_keeps_what_it_takes_longer():
    rows = [row for row in ROWS if (row["rate"], row.get("bytes")) != ("collective_in_step", 4 << 20)]
    rates = ProbedRates.from_rows(rows)
    assert isinstance(rates, ProbedRates)
    small, large = (rates.duration_between_layers("all_reduce", PAIR, size) for size in (4096, 4 << 20))
    assert small and small.seconds == pytest.approx(0.004)
    # 5 ms alone, and the 3 ms by which the small one takes longer between layers; not 1,024 times 4 ms
    assert large and large.seconds == pytest.approx(0.008)


@pytest.mark.parametrize(
    "damage",
    [
        {"seconds": 0.0},
        {"seconds": -1.0},
        {"seconds": math.nan},
        {"seconds": None},
        {"repetitions": 0},
        {"relative_sd": None},
        {"relative_sd": math.inf},
        {"samples": 0},
        {"samples": "2"},
    ],
    ids=str,
)
def test_rows_that_no_measurement_has_do_not_count(damage):
    broken = rate_row("forward_backward", 2, 0.01) | damage
    found = ProbedRates.from_rows([broken, {}, *ROWS[1:]])
    assert isinstance(found, ProbedRates)
    assert [amount for amount, _ in found.passes.points] == [8]
    assert ProbedRates.from_rows([broken, *ROWS[2:]]) == "the probe did not measure forward_backward"


def test_a_probe_without_passes_gives_a_reason():
    lost = [dict(each, reason="ran out of time") if "samples" in each else each for each in ROWS]
    assert ProbedRates.from_rows(lost) == "the probe did not measure forward_backward"
    assert ProbedRates.from_rows([]) == "the probe did not measure forward_backward"


@pytest.mark.parametrize(
    ("dimension", "group"),
    [
        ("tp", ProbedGroup(2)),
        # four ranks apart: each pair of shards is on a node of 4, the replicas are not
        ("dp_shard", ProbedGroup(2)),
        ("dp_replicate", ProbedGroup(2, 2)),
        (None, ProbedGroup(8, 2)),
    ],
)
def test_a_dimension_spans_nodes_if_its_ranks_do(dimension, group):
    rows = [
        *ROWS,
        rate_row("collective", 4096, 0.001, "all_reduce", ranks=8, nodes=2),
        rate_row("collective", 4096, 0.001, "all_reduce", ranks=4, nodes=1),
    ]
    rates = ProbedRates.from_rows(rows)
    assert isinstance(rates, ProbedRates)
    assert rates.group({"dp_replicate": 2, "dp_shard": 2, "tp": 2}, dimension, 8) == group


def probe_with(pass_s: float, of: Any, **changes: Any) -> Any:
    """Record of a probe of *of* whose pass of a sample takes *pass_s* seconds."""
    rows = [row for row in probe_rows(of.world_size) if row["rate"] != "forward_backward"]
    return probe_of(of, [rate_row("forward_backward", 1, pass_s), *rows], **changes)


def pass_seconds(found: ProbedRates | str) -> float:
    assert isinstance(found, ProbedRates), found
    return found.passes.at(1).seconds


def test_the_newest_probe_counts_whatever_the_order_of_records():
    old = probe_with(0.1, case(), started="2026-01-01T00:00:00Z")
    new = probe_with(0.2, case(), started="2026-01-02T00:00:00Z")
    for records in ([old, new], [new, old]):
        assert pass_seconds(probed_rates(case(), records)) == pytest.approx(0.2)


def test_the_probe_that_was_made_for_the_case_comes_first():
    own = probe_with(0.1, case(), job=job_of("probe", cases=[case("fsdp").id]))
    newer = probe_with(0.2, case(), started="2026-01-02T00:00:00Z")
    assert pass_seconds(probed_rates(case("fsdp"), [own, newer])) == pytest.approx(0.1)
    assert pass_seconds(probed_rates(case("tp"), [own, newer])) == pytest.approx(0.2)
    lost = dataclasses.replace(own, status=Status.CRASHED)
    assert pass_seconds(probed_rates(case("fsdp"), [lost, newer])) == pytest.approx(0.2)
    assert probed_rates(case("fsdp"), [lost]) == "the probe on 2 devices ended as crashed"


@pytest.mark.parametrize(
    ("changes", "other"),
    [
        ({"env": {"MKL_DYNAMIC": "0"}}, "env"),
        ({"optimizer": OptimizerConfig(clip_grad_norm=1.0)}, "optimizer.clip_grad_norm"),
        ({"optimizer": OptimizerConfig("sgd")}, "optimizer"),
    ],
)
def test_other_conditions_have_other_rates(changes, other):
    assert probed_rates(case(**changes), [probe_of(case())]) == f"the probe on 2 devices has another {other}"


def test_a_seed_or_a_learning_rate_decides_no_rate():
    same = case(seed=7, optimizer=OptimizerConfig(lr=0.5))
    assert isinstance(probed_rates(same, [probe_of(case())]), ProbedRates)


def test_rows_of_unknown_lengths_have_no_rates():
    packed = case(data=PluginChoice("user", {"dataset": "rows:Tokens", "packing": True}))
    assert "row lengths differ" in str(probed_rates(packed, [probe_of(packed)]))


def test_a_probe_of_one_node_tells_nothing_of_two():
    of = case(world_size=4)
    one = Machine("cuda", 4, {}, has_libaio=False, has_compiler=False)
    two = dataclasses.replace(one, nodes=2)
    here, apart = probe_of(of), probe_of(of, nodes={"a": [0, 1], "b": [2, 3]})
    assert isinstance(probed_rates(of, [here], one), ProbedRates)
    reason = "the probe on 4 devices ran on 1 node, and the case needs 2"
    assert probed_rates(of, [here], two) == reason
    assert isinstance(probed_rates(of, [apart], two), ProbedRates)
    assert isinstance(probed_rates(case(), [probe_of(case())], two), ProbedRates)

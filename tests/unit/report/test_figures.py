"""What the figures rest on: fronts, budgets that add up, every trial; and that each can be told apart."""

import itertools
import json
import re
from dataclasses import fields, replace

import numpy as np
import pytest

from distbench.analysis.candidates import pareto_fronts
from distbench.analysis.case_aggregation import summarize_cases
from distbench.analysis.case_summary import CaseSummary, trials_with
from distbench.analysis.communication import message_bandwidths
from distbench.analysis.ranks import notable_rank_times
from distbench.analysis.scaling import EfficiencyBreakdown, ScalingPoint, efficiency_breakdown, scaling_series
from distbench.analysis.training_curves import consumed_per_step
from distbench.analysis.wording.failure_sentences import FAILURE_ADVICE
from distbench.core.case import Case, PrecisionConfig
from distbench.core.measurement import TimeLimits
from distbench.record import Record, RecordRow, Status
from distbench.report.html import Chapter
from distbench.report.page import chapters
from distbench.views.charts import palette
from distbench.views.charts.figures import MAX_CHART_CASES, CaseAxis, CaseStyle, Chart, byte_ticks, log_ticks
from distbench.views.charts.labels import LineEnd, label_line_ends, place_mark_labels
from distbench.views.charts.palette import (
    COLLECTIVES,
    COMMUNICATION,
    COPIES,
    DIMENSIONS,
    EFFICIENCY,
    GREY,
    MEMORY,
    PASSES,
    PREDICTED_TERMS,
    QUANTITIES,
    STEP_PARTS,
    STRATEGIES,
    VERDICTS,
    collective_color,
)
from support.check_records import check_record, differing, none, reference, rounding
from support.records import case, failed, measured, run_info, run_of, with_options

ONE, DDP, FSDP, ZERO = case("ddp", 1), case("ddp"), case("fsdp"), case("zero2")
MIB = 2**20
ENVELOPE = "equivalence-envelope"
MAPS = (
    STEP_PARTS,
    PREDICTED_TERMS,
    PASSES,
    COMMUNICATION,
    COLLECTIVES,
    DIMENSIONS,
    MEMORY,
    EFFICIENCY,
    QUANTITIES,
    VERDICTS,
)
MEANINGS = {collective_color("other"), COPIES, GREY, *(colour for each in MAPS for colour in each.values())}
"""Colours of all that is no strategy."""


def rows(*records: Record) -> list[CaseSummary]:
    return summarize_cases(run_info(*records), records)


def page(*records: Record) -> dict[str, Chapter]:
    return {chapter.id: chapter for chapter in chapters(run_of(*records))}


def chart_of(found: dict[str, Chapter], id_: str) -> Chart:
    (one,) = [chart for chapter in found.values() for chart in chapter.charts if chart.id == id_]
    return one


def profiled_record(of: Case, tokens_per_s: float, exposed: float, work: list[list[float]]) -> Record:
    """Return a record whose step takes 10 s under the profiler, *exposed* s of it in communication."""
    parts = {
        "data": 0.0,
        "forward": 3.0,
        "backward": 5.5 - exposed,
        "optimizer": 1.0,
        "other": 0.0,
        "idle": 0.5,
    }
    values = {f"profile_{part}_s": seconds for part, seconds in parts.items()}
    values |= {"profile_step_s": 10.0, "profile_exposed_comm_s": exposed}
    values |= {"comm_s": exposed, "comm_exposed_s": exposed, "step_s": 9.0, "work_s": 9.0}
    record = measured(of, tokens_per_s, **values)
    steps = {"work_s": work, "profile_step_s": [[10.0 for _ in rank] for rank in work]}
    return replace(record, samples={**record.samples, **steps})


def test_the_front_has_the_cases_of_which_no_other_is_faster_and_leaner():
    lean, fast = case("zero3"), case("zero1")
    found = pareto_fronts(
        rows(
            measured(DDP, 100, memory_peak=50.0),
            measured(fast, 120, memory_peak=50.0),
            measured(lean, 60, memory_peak=20.0),
            measured(FSDP, 60, memory_peak=30.0),
            measured(ONE, 200, memory_peak=10.0),
        )
    )
    assert [front[0].case.world_size for front in found] == [1, 2]
    assert [row.case.label for row in found[1]] == ["zero3", "zero1"]


def test_cases_of_another_precision_have_a_front_of_their_own():
    half = case("ddp", name="ddp/ws2/mb4/bf16", precision=PrecisionConfig(compute="bf16"))
    slow = measured(DDP, 100, memory_peak=50.0)
    found = pareto_fronts(rows(slow, measured(half, 900, memory_peak=10.0)))
    assert [(front[0].case.precision.compute, len(front)) for front in found] == [("fp32", 1), ("bf16", 1)]


def test_a_disturbed_case_is_on_no_front():
    disturbed = replace(measured(FSDP, 900, memory_peak=1.0), degraded="a busy neighbour")
    (front,) = pareto_fronts(rows(measured(DDP), disturbed))
    assert [row.case.label for row in front] == ["ddp"]


def two_devices(record: Record) -> ScalingPoint:
    (series,) = scaling_series(rows(measured(ONE, 100), record))
    return series.points[1]


def test_where_the_efficiency_goes_adds_up_to_one():
    found = efficiency_breakdown(two_devices(profiled_record(DDP, 150, 2.0, [[9.0], [10.0]])))
    assert isinstance(found, EfficiencyBreakdown)
    # an average rank waits (1 + 0) / 2 of 10 s; 2 s are exposed in all
    assert found.efficiency == 0.75
    assert found.waiting == pytest.approx(0.05)
    assert found.transfer == pytest.approx(0.15)
    assert found.efficiency + found.transfer + found.waiting + found.work == pytest.approx(1.0)


def test_no_more_is_waited_than_is_exposed_and_more_than_ideal_is_told_as_less_work():
    found = efficiency_breakdown(two_devices(profiled_record(DDP, 230, 0.5, [[5.0], [5.0]])))
    assert isinstance(found, EfficiencyBreakdown)
    assert (found.waiting, found.transfer) == (0.05, 0.0)
    assert found.work == pytest.approx(1 - 1.15 - 0.05)


def test_where_the_efficiency_goes_is_not_guessed_without_a_profile():
    assert efficiency_breakdown(two_devices(measured(DDP, 150))) == "no step was profiled"
    assert (
        efficiency_breakdown(two_devices(profiled_record(DDP, 150, 2.0, [[9.0]]))) != "no step was profiled"
    )


def test_an_efficiency_has_the_interval_of_its_two_paces():
    one = [measured(ONE, value, round_=i) for i, value in enumerate((100, 110))]
    two = [measured(DDP, value, round_=i) for i, value in enumerate((150, 170))]
    (series,) = scaling_series(rows(*one, *two))
    point = series.points[1]
    ratio = point.throughput.interval.ratio(series.points[0].throughput.interval)
    assert (point.low, point.high) == pytest.approx((ratio.low / 2, ratio.high / 2))
    assert point.low < point.efficiency < point.high


def test_no_efficiency_is_made_up_for_a_pace_without_an_interval():
    two = [
        replace(row, values={name: estimate.as_median for name, estimate in row.values.items()})
        for row in rows(measured(ONE, 100), measured(DDP, 150))
    ]
    with pytest.raises(AssertionError, match="interval"):
        scaling_series(two)


def test_every_trial_is_told_and_those_that_do_not_count_with_their_reason():
    busy = replace(measured(DDP, 70, round_=1), degraded="a busy neighbour")
    records = [busy, measured(DDP, 90), failed(DDP, round_=2)]
    found = trials_with(records, "tokens_per_s")[DDP.id]
    assert [(trial.round, trial.values["tokens_per_s"], trial.degraded) for trial in found] == [
        (0, 90, ""),
        (1, 70, "a busy neighbour"),
    ]
    strip = chart_of(page(*records), "trials-throughput").figure["data"][0]
    assert strip["x"] == [90, 70]
    assert [symbol.endswith("-open") for symbol in strip["marker"]["symbol"]] == [False, True]


def test_a_straggler_is_named_and_a_rank_that_is_hardly_behind_is_not():
    late = profiled_record(DDP, 100, 2.0, [[1.0, 1.0], [2.0, 2.0]])
    even = profiled_record(FSDP, 100, 2.0, [[1.0, 1.0], [1.1, 1.1]])
    found = page(late, even)["ranks"].charts
    assert {each.title: each.finding.partition(":")[0] for each in found} == {
        "ddp": "Straggler in this trial",
        "fsdp": "No straggler",
    }
    assert all("rank 1" in each.finding for each in found)
    assert found[0].table.records()[1] == {"rank": 1, "step_1": 2.0, "step_2": 2.0}
    assert [cells[1:] for cells in found[0].table.texts()] == [("1000", "1000"), ("2000", "2000")]


def test_ranks_are_shown_of_few_cases_however_many_there_are():
    records = [profiled_record(case("ddp", seed=i), 100 + i, 2.0, [[1.0], [2.0]]) for i in range(9)]
    assert len(notable_rank_times(rows(*records), 4)) == 4


def test_bandwidth_is_that_of_the_message_and_its_operation():
    def call(op: str, size: int, seconds: float) -> RecordRow:
        return {
            "rank": 0,
            "step": 0,
            "place": 0,
            "op": op,
            "group_size": 4,
            "dtype": "float32",
            "bytes": size,
            "transfer_s": seconds,
        }

    table = [call("all_reduce", 4000, 1.0), call("all_reduce", 4000, 4.0), call("all_gather", 4000, 1.0)]
    found = message_bandwidths(replace(measured(DDP), tables={"collectives": [*table, call("odd", 10, 1.0)]}))
    # nccl-tests: all-reduce 2(n-1)/n, all-gather (n-1)/n
    assert [(each.op, each.busbw, each.calls) for each in found] == [
        ("all_reduce", (6000 + 1500) / 2, 2),
        ("all_gather", 3000, 1),
    ]


def test_a_loss_is_told_over_tokens_and_over_the_seconds_of_the_slowest_rank():
    record = measured(DDP, 100, samples_per_s=10)
    seconds = {"warmup_step_s": [[3.0], [5.0]], "step_s": [[1.0, 1.0], [2.0, 1.0]]}
    (row,) = rows(replace(record, samples={**record.samples, **seconds}))
    found = consumed_per_step(row)
    assert list(found["steps"]) == [1, 2, 3]
    assert found["tokens"] == [80, 160, 240]
    assert found["seconds"] == [5.0, 7.0, 8.0]


def test_a_loss_over_what_is_not_known_is_not_drawn():
    assert [chart.id for chart in page(measured(DDP))["loss"].charts] == ["loss-steps"]


def test_the_parts_of_a_step_add_up_to_all_of_it():
    found = chart_of(page(profiled_record(DDP, 100, 2.0, [[9.0], [10.0]])), "time-parts")
    # ms of a step of 9 s without the profiler, though it takes 10 s with it
    assert sum(trace["x"][0] for trace in found.figure["data"]) == pytest.approx(9000)
    assert "ddp, 20%" in found.finding
    idle = found.figure["data"][-1]
    assert (idle["name"], idle["x"]) == ("idle", [pytest.approx(450)])


def test_a_record_that_does_not_know_its_idle_time_has_no_bar_of_it():
    older = profiled_record(DDP, 100, 2.0, [[9.0], [10.0]])
    values = {name: value for name, value in older.values.items() if name != "profile_idle_s"}
    found = chart_of(page(replace(older, values=values)), "time-parts")
    assert "idle" not in [trace["name"] for trace in found.figure["data"]]


def test_bars_and_lines_are_kept_to_what_can_be_told_apart_and_the_caption_says_so():
    records = [measured(case("ddp", seed=i), 100.0 + i) for i in range(MAX_CHART_CASES + 2)]
    found = chart_of(page(*records), "trials-throughput")
    assert len(found.figure["data"]) == MAX_CHART_CASES + 1
    assert f"{MAX_CHART_CASES} fastest of {MAX_CHART_CASES + 2}" in found.left_out
    assert len(found.table.rows) == MAX_CHART_CASES + 2


def test_every_status_but_measured_has_something_to_try():
    assert set(FAILURE_ADVICE) == set(Status) - {Status.MEASURED}


def test_what_is_said_to_be_raised_is_a_field_of_the_suite():
    named = set(re.findall(r"limits\.(\w+)", " ".join(FAILURE_ADVICE.values())))
    assert named
    assert named <= {field.name for field in fields(TimeLimits)}


@pytest.mark.parametrize("ground", ["#ffffff", "#14171a"])
def test_every_colour_stands_out_on_either_ground(ground):
    # WCAG 2.2, 1.4.11: graphical objects need a contrast of 3 : 1
    for colour in MEANINGS | {*STRATEGIES} | {*map(palette.faded, STRATEGIES)}:
        darker, lighter = sorted((_luminance(colour), _luminance(ground)))
        assert (lighter + 0.05) / (darker + 0.05) >= 3, colour


# Machado, Oliveira and Fernandes 2009, doi:10.1109/TVCG.2009.113: severity 1.0, for linear sRGB
CONE_DEFECTS = {
    "none": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
}
BARS = {
    "step": palette.STEP_PARTS,
    "predicted": palette.PREDICTED_TERMS,
    "memory": palette.MEMORY,
    "peak": palette.PEAK_HOLDERS,
    "efficiency": palette.EFFICIENCY,
    "passes": palette.PASSES,
    "exposed": {name: palette.COMMUNICATION[name] for name in ("exposed", "hidden")},
    "waiting": {name: palette.COMMUNICATION[name] for name in ("transfer", "waiting")},
}


@pytest.mark.parametrize("defect", CONE_DEFECTS)
@pytest.mark.parametrize("bar", BARS)
def test_parts_of_a_bar_can_be_told_apart_by_colour_blind_readers(bar, defect):
    seen = {name: _lab(CONE_DEFECTS[defect] @ _linear(colour)) for name, colour in BARS[bar].items()}
    assert len(seen) > 1
    for (one, here), (other, there) in itertools.combinations(seen.items(), 2):
        assert np.linalg.norm(here - there) >= 20, (one, other)


def _lab(linear: np.ndarray) -> np.ndarray:
    """CIELAB under D65 of linear sRGB."""
    to_xyz = np.array(
        [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.072175],
            [0.0193339, 0.119192, 0.9503041],
        ]
    )
    ratios = to_xyz @ np.clip(linear, 0, 1) / to_xyz.sum(axis=1)
    x, y, z = np.where(ratios > (6 / 29) ** 3, np.cbrt(ratios), ratios * (29 / 6) ** 2 / 3 + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_no_colour_of_a_strategy_means_anything_else():
    assert MEANINGS & {*STRATEGIES} == set()


def _luminance(colour: str) -> float:
    return float(np.array([0.2126, 0.7152, 0.0722]) @ _linear(colour))


def _linear(colour: str) -> np.ndarray:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return np.array([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels])


def test_each_of_many_families_has_a_mark_of_its_own():
    families = [f"plugin{i}" for i in range(40)]
    style = CaseStyle(families)
    assert len({json.dumps(style.marker(family)) for family in families}) == 40


def test_distances_from_the_reference_stand_beside_what_rounding_allows():
    same = check_record(FSDP, "case", {"case": none})
    same = replace(same, job=with_options(same.job, of=FSDP.id))
    checks = [reference(), check_record(DDP, "case", {"case": rounding}), differing(ZERO), same]
    found = chart_of(
        page(*(measured(each) for each in (case("single", 1), DDP, FSDP, ZERO)), *checks), ENVELOPE
    )
    limit, *marks = found.figure["data"]
    assert limit["x"] == [1, 1]
    furthest: dict[str, float] = {}
    for mark in marks:
        for x, of in zip(mark["x"], mark["customdata"], strict=True):
            furthest[of] = max(x, furthest.get(of, 0.0))
    # what is the same in every bit has no place on a logarithm, and is told
    assert set(furthest) == {DDP.id, ZERO.id}
    assert furthest[DDP.id] < 1 < furthest[ZERO.id]
    assert found.finding.startswith("3 cases checked: 1 differ, 1 ")
    assert found.figure["layout"]["yaxis"]["ticktext"][0].startswith("zero2")


def test_cases_stand_below_a_heading_for_their_number_of_devices():
    found = rows(measured(ONE), measured(DDP), measured(FSDP))
    axis = CaseAxis.of((row, row.case.label) for row in found)
    assert axis.labels == ["1 device:", "ddp", "2 devices:", "ddp", "fsdp"]
    assert axis.positions == [1, 3, 4]
    assert CaseAxis.of((row, row.case.label) for row in found[1:]).labels == ["ddp", "fsdp"], (
        "nothing to tell apart"
    )


def test_names_at_the_ends_of_lines_do_not_cover_each_other_and_one_place_has_one_name():
    ends = [LineEnd(4, y, f"line {y}", "#000000") for y in (50.0, 50.1, 49.0, 10.0)]
    found = label_line_ends(ends, 0, 100, 300)
    assert [each["text"] for each in found] == ["line 50.0 (+2)", "line 10.0"]
    apart = label_line_ends([LineEnd(4, y, "line", "#000000") for y in (50.0, 48.0, 46.0)], 0, 100, 300)
    heights = [300 - 3 * each["y"] + each["ay"] for each in apart]
    assert min(lower - upper for upper, lower in itertools.pairwise(heights)) >= 15
    assert label_line_ends([], 0, 1, 300) == []
    low = label_line_ends([LineEnd(x, 1.0, "line", "#000000") for x in range(9)], 0, 100, 300)
    assert max(300 - 3 * each["y"] + each["ay"] for each in low) <= 300, "none below the chart"


def test_a_name_stands_where_it_covers_no_other_mark_or_name():
    words = place_mark_labels(
        [(0.5, 0.5, "first"), (0.5, 0.46, "second"), (0.01, 0.5, "at the edge")], 800, 400
    )
    assert words[0] not in (words[1], "top center"), "the second mark is right above"
    assert words[2] == "middle right", "it would be cut off in the middle"


def test_sizes_and_speeds_have_round_ticks():
    assert byte_ticks([3000, 5e6])["ticktext"][:3] == ["2 KiB", "8 KiB", "32 KiB"]
    assert log_ticks([0.04, 0.9])["ticktext"] == ["0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1", "2", "5"]
    assert byte_ticks([]) == log_ticks([]) == {}


def test_ranks_are_drawn_on_one_scale_and_by_their_nodes():
    of = case("ddp", 4)
    late = profiled_record(of, 100, 2.0, [[1.0], [1.0], [1.05], [1.5]])
    (found,) = page(replace(late, nodes={"b": [1, 3], "a": [0, 2]}))["ranks"].charts
    (trace,) = found.figure["data"]
    assert (trace["zmin"], trace["zmax"]) == (0.8, 1.2)
    assert trace["text"] == [["1000 ms"], ["1050 ms"], ["1000 ms"], ["1500 ms"]]
    assert len(found.figure["layout"]["shapes"]) == 1
    assert found.table is not None
    assert [row.value("rank") for row in found.table.rows] == [0, 2, 1, 3]


def test_the_plane_has_a_chart_for_each_number_of_devices_and_a_ring_around_the_pick():
    many = [measured(case(label, size), 100 * size) for label in ("ddp", "fsdp") for size in (2, 4)]
    found = page(measured(ONE, 100), *many)["throughput"].charts
    assert [each.id for each in found] == ["throughput-memory", "throughput-memory-2"]
    assert "4 devices" in found[0].title
    assert "with a single case are left out" in found[0].left_out
    rings = [[t["name"] for t in each.figure["data"]].count("recommended") for each in found]
    assert rings == [1, 0]


def test_memory_over_a_step_has_what_a_phase_left_and_its_peak_and_the_limit_where_it_is_near():
    kinds = {"parameters": 2.0 * MIB, "gradients": 1.0 * MIB, "allocated": 3.0 * MIB, "states": 3.0 * MIB}
    ends = {"forward": 7.0 * MIB, "backward": 9.0 * MIB, "step": 3.0 * MIB}
    phases = [{"rank": 0, "micro_batch": 0, "phase": p, "peak": peak, **kinds} for p, peak in ends.items()]
    of = case("ddp", device="cuda")
    record = replace(measured(of), tables={"memory": phases}, environment={"gpu_memory_bytes": [12 * MIB]})
    made = chart_of(page(record), "memory-steps").figure
    drawn = {trace["name"]: trace["x"] for trace in made["data"]}
    assert drawn == {
        "parameters": [2, 2, 2],
        "gradients": [1, 1, 1],
        "peak during the phase": [7, 9, 3],
        "memory of the device: 12.0 MiB": [12, 12],
    }
    (one,) = made["layout"]["pair"]["cases"]
    assert one["axis"]["ticktext"] == ["forward", "backward", "optimizer"]
    far = replace(record, environment={"gpu_memory_bytes": [80 << 30]})
    assert len(chart_of(page(far), "memory-steps").figure["data"]) == 3, "bars would be too short to read"
    untold = replace(record, tables={"memory": [{**row, "peak": None} for row in phases]})
    assert "memory-steps" not in [each.id for each in page(untold)["memory"].charts]

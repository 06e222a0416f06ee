"""What records say together: medians over trials, ratios, and sentences that claim no more than that."""

import json
import math
from dataclasses import replace

import pytest

from distbench.analysis.case_aggregation import summarize_cases
from distbench.analysis.inter_node import NodeEfficiency, node_efficiency
from distbench.analysis.run import RunAnalysis
from distbench.analysis.scaling import fastest_series, scaling_series
from distbench.analysis.wording.findings import all_findings
from distbench.core.case import Batch, LoaderConfig, PluginChoice, PrecisionConfig
from distbench.core.text import join_limited, one_line, shorten, strip_control_characters
from distbench.record import Record, Status
from distbench.report.run_export import run_json
from distbench.views.scaling import ScalingView
from support.records import case, failed, info, measured, run_of, unsupported

DDP, FSDP, ONE = case("ddp"), case("fsdp"), case("ddp", 1)


def test_a_number_is_the_median_over_trials_with_its_range():
    records = [measured(DDP, value, round_=i) for i, value in enumerate([90.0, 100.0, 130.0])]
    (row,) = summarize_cases(info(DDP), records)
    found = row.values["tokens_per_s"].as_median
    assert (found.value, found.low, found.high, found.trial_count) == (100, 90, 130, 3)
    assert found.relative_half_width == pytest.approx(0.2)


def test_a_pace_is_the_mean_over_trials_and_a_step_takes_as_long_as_that_says():
    paces = [90.0, 100.0, 130.0]
    records = [measured(DDP, value, round_=i, step_s=800 / value) for i, value in enumerate(paces)]
    (row,) = summarize_cases(info(DDP), records)
    pace, step = row.values["tokens_per_s"], row.values["step_s"]
    assert pace.value == pytest.approx((90 * 100 * 130) ** (1 / 3))
    assert pace.value * step.value == pytest.approx(800)
    assert pace.bounds == pytest.approx([800 / end for end in reversed(step.bounds)])


def test_one_trial_has_no_spread():
    (row,) = summarize_cases(info(DDP), [measured(DDP)])
    assert row.values["tokens_per_s"].relative_half_width is None


def test_throughput_is_relative_to_ddp_at_the_same_world_size():
    rows = summarize_cases(info(DDP, FSDP), [measured(DDP, 200), measured(FSDP, 50)])
    assert [row.relative_throughput for row in rows] == [1, 0.25]


def test_throughput_is_relative_to_ddp_whatever_the_suite_calls_it_and_whatever_loads_its_data():
    yours = case("yours", strategy=PluginChoice("ddp"))
    rows = summarize_cases(info(yours, FSDP), [measured(yours, 200), measured(FSDP, 50)])
    assert [row.relative_throughput for row in rows] == [1, 0.25]
    other = case("ours", strategy=PluginChoice("ddp", {"find_unused_parameters": True}))
    assert summarize_cases(info(other), [measured(other)])[0].relative_throughput is None
    loaded = case("fsdp", loader=LoaderConfig(workers=2), env={"A": "1"})
    rows = summarize_cases(info(DDP, loaded), [measured(DDP, 200), measured(loaded, 50)])
    assert [row.relative_throughput for row in rows] == [1, 0.25]


def test_nothing_is_relative_to_a_ddp_that_did_other_work_and_the_reason_is_told():
    other = case("ddp", batch=Batch(16, 8, 1))
    rows = summarize_cases(info(other, FSDP), [measured(other), measured(FSDP)])
    assert rows[1].relative_throughput is None
    assert "no ddp at this world size that does the same work" in rows[1].relative_absence


def test_nothing_is_relative_to_a_ddp_that_failed():
    row = summarize_cases(info(DDP, FSDP), [failed(DDP), measured(FSDP)])[1]
    assert (row.relative_throughput, "crashed" in row.relative_absence) == (None, True)


@pytest.mark.parametrize(
    ("device", "timed_s", "told"), [("cuda", 0.010, "60%"), ("cuda", 0.005, ""), ("cpu", 0.010, "")]
)
def test_gpus_that_wait_for_the_host_are_a_finding(device, timed_s, told):
    # the profiler makes a step longer, but not what runs on the GPU in it: 4 ms
    seen = {"profile_step_s": 0.030, "profile_other_s": 0.026, "step_s": timed_s}
    one = case("ddp", device=device)
    found = [line for line in all_findings(run_of(measured(one, **seen))) if "GPUs are idle" in line]
    assert bool(found) == bool(told)
    assert told in "".join(found)


def test_a_case_without_a_record_is_pending():
    (row,) = summarize_cases(info(DDP), [])
    assert row.status == "pending"


def test_a_case_with_one_good_trial_is_measured_and_says_how_many_failed():
    (row,) = summarize_cases(info(DDP), [failed(DDP), measured(DDP, round_=1)])
    assert (row.status, row.trials, row.failed) == ("measured", 1, 1)
    assert "1 of 2 trials failed" in row.reason


def test_a_trial_that_was_stopped_does_not_hide_one_that_crashed():
    records = [failed(DDP, "stopped", status=Status.CANCELLED), failed(DDP, "it broke", round_=1)]
    (row,) = summarize_cases(info(DDP), records)
    assert (row.status, row.reason) == ("crashed", "it broke")


def test_a_failure_names_the_log_of_its_rank_inside_the_folder_of_the_run():
    (row,) = summarize_cases(info(DDP), [failed(DDP, round_=2)])
    assert row.log == f"trials/ddp-ws2-mb4-fp32-{DDP.id}/2/rank1.log"


def test_losses_begin_with_the_warm_up_and_are_the_mean_over_ranks():
    (row,) = summarize_cases(info(DDP), [measured(DDP)])
    assert row.losses == [4.0, 3.0, 2.5]


def test_losses_are_told_without_any_warm_up():
    (row,) = summarize_cases(info(DDP), [replace(measured(DDP), warmup_losses=[])])
    assert row.losses == [3.0, 2.5]


@pytest.mark.parametrize("broken", [None, math.nan, math.inf])
def test_a_loss_that_one_rank_did_not_give_is_not_known(broken):
    (row,) = summarize_cases(
        info(DDP), [replace(measured(DDP), samples={"loss": [[3.0, 2.5], [broken, 2.5]]})]
    )
    assert row.losses == [4.0, None, 2.5]


def test_a_summary_is_valid_json_even_where_a_number_was_not_finite():
    document = run_json(RunAnalysis(info(DDP), [measured(DDP, final_loss=math.nan), failed(FSDP)]))
    shown = json.loads(json.dumps(document, allow_nan=False))["cases"]
    assert "final_loss" not in shown[0]["values"]
    assert shown[0]["absent"]["final_loss"] == "not a finite number"
    assert shown[1]["failure"]["rank"] == 1


def test_a_number_that_only_a_later_trial_has_is_kept():
    later = measured(DDP, round_=1, beats=7.0)
    (row,) = summarize_cases(info(DDP), [measured(DDP), later])
    assert (row.values["beats"].value, row.values["beats"].trial_count) == (7.0, 1)


def test_a_column_that_a_foreign_record_hardly_describes_is_read_all_the_same():
    foreign = replace(measured(DDP), columns={"tokens_per_s": {}})
    (shown,) = run_json(run_of(foreign))["cases"]
    assert shown["values"]["tokens_per_s"]["unit"] == ""


def test_efficiency_is_throughput_over_n_times_that_of_one_device():
    (series,) = scaling_series(summarize_cases(info(ONE, DDP), [measured(ONE, 100), measured(DDP, 150)]))
    assert (series.name, series.kind) == ("ddp", "strong")
    assert [(point.world_size, point.efficiency) for point in series.points] == [(1, 1.0), (2, 0.75)]


def test_the_fastest_cases_are_compared_with_one_device_whatever_their_strategies():
    single = case("single", 1)
    records = [measured(single, 100), measured(DDP, 150), measured(FSDP, 180)]
    cases = summarize_cases(info(single, DDP, FSDP), records)
    assert scaling_series(cases) == [], "no strategy ran on one device and on more"
    (series,) = fastest_series(cases)
    assert (series.name, series.kind) == ("fastest (single, fsdp)", "strong")
    assert [(point.world_size, point.efficiency) for point in series.points] == [(1, 1.0), (2, 0.9)]
    rows = ScalingView().table(RunAnalysis(info(single, DDP, FSDP), records)).records()
    assert [(row["series"], row["efficiency"]) for row in rows] == [(series.name, 1.0), (series.name, 0.9)]
    # one strategy that is the fastest on all numbers of devices has a series of its own
    assert fastest_series(summarize_cases(info(ONE, DDP), [measured(ONE, 100), measured(DDP, 150)])) == []
    # a larger batch in total and on each device is other work
    other = case("ddp", 2, name="ddp/ws2/mb8/fp32", batch=Batch(32, 16, 1))
    assert fastest_series(summarize_cases(info(single, other), [measured(single), measured(other)])) == []


def record_on_nodes(record: Record, count: int) -> Record:
    of_one = record.case.world_size // count
    return replace(record, nodes={f"n{i}": [*range(i * of_one, (i + 1) * of_one)] for i in range(count)})


def scaling_over_nodes(*sizes: int) -> RunAnalysis:
    """Return a run of nodes of two devices each, on which throughput grows as follows."""
    pace = {1: 100.0, 2: 180.0, 4: 270.0, 8: 432.0}
    records = [record_on_nodes(measured(case("ddp", n), pace[n]), max(1, n // 2)) for n in sizes]
    return run_of(*records)


def test_efficiency_is_taken_apart_at_the_border_of_a_node():
    run = scaling_over_nodes(1, 2, 4, 8)
    (series,) = run.scaling
    one, whole, two, four = (node_efficiency(series, point) for point in series.points)
    assert one == whole == "all ranks are on one node"
    assert isinstance(two, NodeEfficiency) and isinstance(four, NodeEfficiency)
    assert (two.within_node, two.across_nodes) == (pytest.approx(0.9), pytest.approx(0.75))
    assert (four.nodes, four.devices_per_node, four.across_nodes) == (4, 2, pytest.approx(0.6))
    assert four.within_node * four.across_nodes == pytest.approx(series.points[3].efficiency)
    told = "ddp 0.90 on one node (2 devices), 0.60 across 4 nodes."
    assert any(each.endswith(told) for each in all_findings(run))


def test_of_nodes_of_one_device_the_efficiency_is_not_told_twice():
    records = [record_on_nodes(measured(case("ddp", n), 100.0), n) for n in (1, 2)]
    run = run_of(*records)
    found = node_efficiency(run.scaling[0], run.scaling[0].points[1])
    assert isinstance(found, NodeEfficiency) and (found.within_node, found.across_nodes) == (
        1,
        pytest.approx(0.5),
    )
    assert not any("within and across nodes" in each for each in all_findings(run))


def test_the_border_of_a_node_is_not_guessed_without_a_trial_on_a_whole_one():
    (series,) = scaling_over_nodes(1, 4).scaling
    assert node_efficiency(series, series.points[1]) == "no trial ran on exactly one node (2 devices)"
    uneven = replace(measured(case("ddp", 4)), nodes={"a": [0, 1, 2], "b": [3]})
    (series,) = scaling_series(summarize_cases(info(ONE, uneven.case), [measured(ONE), uneven]))
    assert node_efficiency(series, series.points[1]) == "its nodes have different numbers of ranks: 1, 3"


def test_columns_of_nodes_are_shown_only_where_there_are_several():
    beyond, within = (
        ScalingView().table(scaling_over_nodes(1, 2, 4)),
        ScalingView().table(scaling_over_nodes(1, 2)),
    )
    assert {"nodes", "in a node", "over nodes"} <= {*beyond.headings}
    assert not {"nodes", "in a node", "over nodes"} & {*within.headings}
    assert [row["between"] for row in beyond.records()] == [None, None, pytest.approx(0.75)]


def test_with_the_batch_of_a_device_fixed_scaling_is_weak():
    two = case("ddp", 2, batch=Batch(16, 8, 1))
    (series,) = scaling_series(summarize_cases(info(ONE, two), [measured(ONE, 100), measured(two, 150)]))
    assert (series.kind, series.points[1].efficiency) == ("weak", 0.75)


def test_batches_of_different_sizes_do_not_mix_in_one_efficiency():
    speeds = {(1, 8): 100, (1, 16): 150, (2, 8): 160, (2, 16): 240}
    cases = {
        (size, batch): case(
            "ddp", size, name=f"ddp/ws{size}/batch={batch}", batch=Batch(batch, batch // size, 1)
        )
        for size, batch in speeds
    }
    rows = summarize_cases(info(*cases.values()), [measured(cases[key], speeds[key]) for key in cases])
    strong = {
        series.name: series.points[1].efficiency for series in scaling_series(rows) if series.kind == "strong"
    }
    assert strong == {"ddp/batch=8 (strong)": 0.8, "ddp/batch=16 (strong)": 0.8}


def test_one_batch_cut_up_in_two_ways_makes_two_series():
    cases = [
        case("ddp", size, name=f"ddp/ws{size}/mb{micro}", batch=Batch(8, micro, 8 // micro // size))
        for size in (1, 2)
        for micro in (2, 4)
    ]
    found = scaling_series(summarize_cases(info(*cases), [measured(each) for each in cases]))
    assert [[point.world_size for point in series.points] for series in found] == [[1, 2], [1, 2]]


@pytest.mark.parametrize("base", [None, 0.0])
def test_without_a_throughput_on_one_device_there_is_no_efficiency(base):
    records = [measured(DDP)] if base is None else [measured(ONE, base), measured(DDP)]
    assert scaling_series(summarize_cases(info(DDP), records)) == []


@pytest.mark.parametrize(
    ("ddp", "fsdp", "told"),
    [
        ([200, 210], [100, 110], "1.95x fsdp"),
        ([200, 100], [150, 160], "within trial-to-trial variation"),
        ([200], [100], "may be noise"),
    ],
)
def test_a_lead_is_claimed_only_as_far_as_the_trials_bear_it(ddp, fsdp, told):
    records = [measured(c, v, round_=i) for c, vs in ((DDP, ddp), (FSDP, fsdp)) for i, v in enumerate(vs)]
    assert told in all_findings(run_of(*records))[0]


def test_what_failed_and_what_can_not_run_is_said_with_the_reason():
    said = "\n".join(all_findings(run_of(failed(DDP, "it broke"), unsupported(FSDP))))
    assert "Failed: ddp/ws2/mb4/fp32: crashed, rank 1 in time: it broke" in said
    assert "Unsupported here: fsdp/ws2/mb4/fp32: needs a GPU" in said


def test_the_leanest_is_named_only_if_memory_differs():
    rows = run_of(measured(DDP, memory_peak=1e6), measured(FSDP, memory_peak=5e5))
    assert "Lowest memory on 2 devices: fsdp" in all_findings(rows)[1]
    rows = run_of(measured(DDP), measured(FSDP))
    assert "all cases are within 1%" in all_findings(rows)[1]


def test_another_precision_is_never_called_faster():
    half = case("ddp", name="ddp/ws2/mb4/bf16", precision=PrecisionConfig(compute="bf16"))
    said = all_findings(
        RunAnalysis(info(case("ddp"), half), [measured(case("ddp"), 100), measured(half, 900)])
    )
    assert not [sentence for sentence in said if sentence.startswith("Fastest")]


@pytest.mark.parametrize("changes", [{"batch": Batch(64, 32, 1)}, {"seed": 2}])
def test_the_fastest_is_looked_for_among_cases_of_the_same_work(changes):
    other = case("fsdp", **changes)
    said = all_findings(run_of(measured(DDP, 100), measured(other, 200)))
    assert not [sentence for sentence in said if sentence.startswith("Fastest")]


def test_cases_of_one_strategy_are_told_apart_by_what_differs():
    small, large = (case("ddp", name=f"ddp/ws2/mb{n}/fp32", batch=Batch(16, n, 8 // n)) for n in (4, 8))
    said = all_findings(run_of(measured(small, 100), measured(large, 200)))
    assert "ddp/mb8, 200 tokens/s" in said[0]
    assert "fp32" not in said[0]


def test_different_workloads_are_not_compared():
    other = case("fsdp", name="fsdp/ws2/mb4/fp32/mlp", workload=PluginChoice("mlp"))
    assert "Fastest" in "".join(all_findings(RunAnalysis(info(), [measured(DDP), measured(FSDP)])))
    assert "Fastest" not in "".join(all_findings(RunAnalysis(info(), [measured(DDP), measured(other)])))


@pytest.mark.parametrize(
    ("place", "device", "expected"), [("cpu", "cpu", True), ("cpu", "cuda", False), ("nvme", "cpu", False)]
)
def test_offload_from_memory_to_memory_is_reported_to_save_none(place, device, expected):
    of = case("offloading", device=device, strategy=PluginChoice("zero", {"offload_optimizer": place}))
    assert any("saves no memory" in each for each in all_findings(run_of(measured(of)))) is expected


def test_a_case_that_failed_in_part_and_one_that_was_not_run_are_said():
    said = all_findings(RunAnalysis(info(DDP, FSDP), [measured(DDP), failed(DDP, "it broke", round_=1)]))
    assert "Partly failed: ddp/ws2/mb4/fp32: 1 of 2 trials failed: it broke" in said
    assert "1 of 2 cases have no record yet." in said


def test_a_thousand_failures_are_not_a_thousand_sentences():
    bad = [failed(case("ddp", seed=seed)) for seed in range(1000)]
    assert len(all_findings(RunAnalysis(info(), bad))) < 30


def test_text_of_others_loses_what_a_terminal_would_act_on():
    assert (
        strip_control_characters(
            "\x1b[31mred\x1b[0m\x1b]0;title\x07\u202e\u061c\u2028\u2029\x00\ud800 stays\nhere"
        )
        == "red stays\nhere"
    )
    assert one_line("\n  \r first \t line\nsecond") == "first line"
    assert shorten("zero3+offload-all-nvme+ds-adam", 20) == "zero3+offl…e+ds-adam"
    assert join_limited(["a", "b", "c"], limit=2) == "a, b and 1 more"

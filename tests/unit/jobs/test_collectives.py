"""Collectives: nccl-tests' numbers over real ranks, and how they are planned, judged, shown and compared."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distbench.analysis.collectives import CollectiveBaseline, collective_results
from distbench.analysis.communication import collective_traffic
from distbench.analysis.run import RunAnalysis
from distbench.analysis.wording.verdict_sentences import bad_verdict_sentences
from distbench.cli import main
from distbench.core.case import Case
from distbench.core.job import job_kind
from distbench.core.rank_groups import rank_groups
from distbench.gate.case_verdict import required_findings
from distbench.gate.columns import compare_columns
from distbench.jobs.links import _placeholder_case
from distbench.jobs.links.comparison import bandwidth_changes, comparison_sheet
from distbench.jobs.links.sizes import message_sizes
from distbench.metrics.communication.traffic import bus_factor, element_count
from distbench.record import Record, Status
from distbench.suite.gate import parse_gate as gate_rules
from distbench.views.base import all_views
from support.records import case, failed, info, job_of, measured
from support.runs import OF_OUR_OWN, QUICK, Finished
from support.suites import write_suite

REQUESTED = (
    "collectives: {sizes: [4KiB, 64KiB], dtypes: [fp32, bf16], iterations: 3, trials: 2, seconds: 0.2}"
)
SUITE = QUICK.replace("trials: 1", "trials: 0") + f"strategies: [ddp, fsdp]\n{REQUESTED}\n"
NOISE = (0.99, 1.01)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")


def written(folder: Path, text: str) -> str:
    file = write_suite(folder, text, "mine.yaml")
    return str(file)


def row(busbw: float, **changed: Any) -> dict[str, Any]:
    about = {"op": "all_reduce", "dtype": "fp32", "group": "all", "ranks": "0,1", "group_size": 2, "nodes": 1}
    size = {"bytes": 4096, "count": 1024, "iterations": 3, "wrong": 0, "reason": ""}
    seconds = {"seconds": 4096 / busbw, "fastest_s": 3000 / busbw, "slowest_s": 5000 / busbw}
    return {"rank": 0, **about, **size, **seconds, "algbw": busbw, "busbw": busbw, **changed}


def record(rows: list[dict[str, Any]], of: Case, round_: int = 0) -> Record:
    made = measured(_placeholder_case(2, "cpu"), round_=round_)
    job = job_of("collectives", role="case", cases=[of.id])
    return replace(made, job=job, tables={"collective_times": rows}, values={})


def analysed(*records: Record, of: Case) -> RunAnalysis:
    return RunAnalysis(info(of), records)


@pytest.mark.parametrize(
    ("asked", "factor", "sizes"),
    [
        ("1KiB..16KiB", 4, (1024, 4096, 16384)),
        ("8..64", 2, (8, 16, 32, 64)),
        ("1MiB", 2, (1 << 20,)),
        (["1MiB", 512, "1 kB"], 2, (512, 1000, 1 << 20)),
    ],
)
def test_sizes_are_a_range_by_its_factor_or_a_list(asked, factor, sizes):
    assert message_sizes(asked, factor, "cpu") == sizes


def test_automatic_sizes_go_further_on_gpus():
    assert message_sizes("auto", 4, "cuda")[-1] > message_sizes("auto", 4, "cpu")[-1]


def test_all_ranks_have_the_same_share_of_an_array():
    assert element_count(1024, 4, 2) == 256
    assert element_count(1000, 4, 3) == 249, "rounded down to shares"
    assert element_count(1, 4, 3) == 3, "at least one element each"


def test_groups_are_formed_once():
    """Ranks of two nodes; what would be the ranks of another group again is left out with the reason."""
    two = [0, 0, 1, 1]
    assert rank_groups("all", two).members == ((0, 1, 2, 3),)
    assert rank_groups("node", two).members == ((0, 1), (2, 3))
    assert rank_groups("between", two).members == ((0, 2),)
    assert "one node" in rank_groups("node", [0, 0]).reason
    assert "one node" in rank_groups("between", [0, 0]).reason
    assert "see the group all" in rank_groups("between", [0, 1]).reason
    assert "on its own node" in rank_groups("node", [0, 1]).reason
    assert rank_groups("node", [0, 1, 1]).members == ((1, 2),), (
        "a rank alone on its node has nobody to talk to"
    )


def test_the_factors_are_those_of_nccl_tests():
    factors = {op: bus_factor(op, 4) for op in OPERATIONS}
    shared = dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), 0.75)
    assert factors == {"all_reduce": 1.5, **shared, "broadcast": 1.0, "send_recv": 1.0}


@pytest.mark.parametrize(
    ("section", "place"),
    [
        ("collectives: {sizes: 4MiB..1KiB}", "collectives.sizes = '4MiB..1KiB': the first size"),
        ("collectives: {sizes: [4XiB]}", "collectives.sizes = "),
        ("collectives: {operations: [all_reduse]}", "did you mean 'all_reduce'?"),
        ("collectives: {groups: []}", "collectives.groups"),
        ("collectives: {factor: 1}", "collectives.factor = 1: must be at least 2"),
        ("collectives: true\nworld_sizes: [1]", "there is nothing to measure"),
    ],
)
def test_a_mistake_in_the_section_is_named(distbench, tmp_path, section, place):
    text = SUITE.replace(REQUESTED, section)
    text = text.replace("world_sizes: [2]\n", "") if "world_sizes: [1]" in section else text
    done = distbench("plan", written(tmp_path, text))
    assert done.returncode == 2
    assert place in done.stderr


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("--factor", "1"), "--factor 1: collectives.factor = 1: must be at least 2"),
        (("--dtypes", "fp33"), "--dtypes fp33: collectives.dtypes[0] = 'fp33': did you mean 'fp32'?"),
        (("--sizes", "4XiB"), "--sizes 4XiB: collectives.sizes = ['4XiB']"),
    ],
)
def test_a_mistake_in_an_option_names_the_option(distbench, asked, told):
    done = distbench("collectives", *asked)
    assert done.returncode == 2
    assert told in done.stderr


@pytest.mark.train
def test_a_plan_has_them_once_for_each_number_of_devices(distbench, tmp_path):
    """Whatever the strategies; and under one id, whatever else the suite trains."""
    ids = []
    small = SUITE.replace(*OF_OUR_OWN).replace(
        "world_sizes: [2]", "world_sizes: [1, 2, 4]\nlauncher: {local: {oversubscribe: true}}"
    )
    for text in (small, small.replace("[ddp, fsdp]", "[zero]").replace("mlp", "{mlp: {depth: 3}}")):
        done = distbench("plan", written(tmp_path, text), "--json")
        planned = json.loads(done.stdout)
        trials = [(trial["case_id"], trial["round"]) for trial in planned["trials"]]
        assert len(trials) == len(set(trials)) == 2 * 2, "two trials on 2 and on 4 devices"
        ids.append({case_id for case_id, _ in trials})
        launched = {launch["case"] for launch in planned["launches"]}
        assert launched == {"collectives/ws2", "collectives/ws4"}
    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    ("wrong", "gravity", "finding"), [(0, "ok", "pass"), (3, "bad", "invalid"), (None, None, "missing")]
)
def test_a_wrong_result_is_a_bad_verdict_on_the_cases_on_as_many_devices(wrong, gravity, finding):
    ddp = case("ddp")
    run = analysed(record([row(1e9, wrong=wrong)], ddp), of=ddp)
    (shown,) = run.cases
    assert [verdict.gravity for verdict in shown.verdicts.values()] == ([gravity] if gravity else [])
    assert bool(bad_verdict_sentences(run)) == (gravity == "bad"), "what ends a run with exit code 1"
    rules, _ = gate_rules({"links": "required"})
    assert rules is not None
    assert [found.word for found in required_findings(shown, rules)] == [finding]
    shown = all_views()["links"].table(run)
    assert ("WRONG RESULT" in shown.to_text(80)) == (wrong == 3)
    assert [each.emphasis for each in shown.rows] == ["bad" if wrong else "best"]


def words_of_columns(pairs: int, slower: float, rng: np.random.Generator) -> list[str]:
    """Words on eight columns of 5% noise a trial, the first of which is *slower*."""
    ddp, names = case("ddp"), [f"busbw_{i}" for i in range(8)]
    column = {"unit": "B/s", "better": "higher", "over_ranks": "first", "doc": "Bandwidth."}

    def arm(loss: float) -> list[Record]:
        drawn = 1e9 * np.exp(rng.normal(0, 0.05, (pairs, 8)) - np.log1p(loss) * np.eye(8)[0])
        return [
            replace(
                record([], ddp, round_=number),
                values=dict(zip(names, row, strict=True)),
                columns=dict.fromkeys(names, column),
            )
            for number, row in enumerate(drawn.tolist())
        ]

    (verdict,) = compare_columns("links", 0.1, arm(0.0), arm(slower))
    return [finding.word for finding in verdict.findings]


def test_columns_that_scatter_alike_tell_each_others_spread():
    rng = np.random.default_rng(4)
    unchanged = [words_of_columns(10, 0.0, rng) for _ in range(100)]
    # by the spread of each column alone 81% are inconclusive, and of the slower ones 65% are found
    assert np.mean(["inconclusive" in words for words in unchanged]) <= 0.12
    assert np.mean(["regressed" in words for words in unchanged]) <= 0.03
    slower = [words_of_columns(5, 0.2, rng) for _ in range(100)]
    assert np.mean([words[0] == "regressed" for words in slower]) >= 0.9


def test_a_gate_compares_the_columns_of_both_arms():
    ddp = case("ddp")
    column = {"unit": "B/s", "better": "higher", "over_ranks": "first", "doc": "Bandwidth."}

    def arm(pace: float, trials: int = 4) -> list[Record]:
        return [
            replace(
                record([], ddp, round_=number),
                values={"all_reduce_busbw": pace * (1 + number / 1000), "send_recv_busbw": 1e9},
                columns={"all_reduce_busbw": column, "send_recv_busbw": column},
            )
            for number in range(trials)
        ]

    def words_of(before: list[Record], after: list[Record]) -> list[str]:
        (verdict,) = compare_columns("collectives", 0.1, before, after)
        assert verdict.case == "collectives/ws2"
        return [found.word for found in verdict.findings]

    assert words_of(arm(1e9), arm(1e9)) == ["pass", "pass"]
    assert words_of(arm(1e9), arm(0.8e9)) == ["regressed", "pass"], "less bandwidth is a cost"
    assert words_of(arm(0.8e9), arm(1e9)) == ["improved", "pass"]
    assert words_of(arm(1e9), arm(0.95e9)) == ["pass", "pass"], "within the tolerance"
    assert words_of(arm(1e9, 2), arm(0.5e9, 2)) == ["inconclusive"] * 2
    assert words_of([], arm(1e9)) == ["incomparable"]
    lost = [replace(each, values={"send_recv_busbw": 1e9}) for each in arm(1e9)]
    assert words_of(arm(1e9), lost) == ["missing", "pass"], "what is gone fails"
    broken = [replace(failed(_placeholder_case(2, "cpu")), job=job_of("collectives"))]
    assert words_of(arm(1e9), broken) == ["broken"]


@pytest.mark.parametrize("value", ["10%", 0.1])
def test_a_gate_names_the_kind_and_its_tolerance(value):
    rules, mistakes = gate_rules({"links": value})
    assert rules is not None and not mistakes
    assert (rules.columns, rules.required) == ({"links": 0.1}, ("links",))
    assert rules.to_resolved()["links"] == 0.1
    assert gate_rules(rules.to_resolved())[0] == rules
    assert [found.message for found in gate_rules({"links": "often"})[1]] == [
        "Allowed: ignored, required, or a fraction above 0 such as 10%"
    ]


def test_a_gate_makes_them_in_both_arms_in_turn(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DISTBENCH_PLUGINS", str(Path(__file__).parents[2] / "plugins"))
    values = {column.name: 1e9 for column in job_kind("collectives").columns} | {"loss": 2.5}
    log = tmp_path / "log"
    suite = f"""
workload: {{mlp: {{}}}}
batch: {{global_batch_size: 8}}
world_sizes: [2]
measure: {{steps: 3}}
metrics: [steptime, throughput]
launcher: {{pretend: {{values: {json.dumps(values)}, log: {log}}}}}
strategies: [pretended]
collectives: {{trials: 4}}
gate: {{efficiency: false, peak_memory: false, links: 10%}}
"""
    slower = "--set-baseline=launcher.pretend.values.all_gather_busbw=2.0e+9"
    main(["gate", written(tmp_path, suite), "--out", str(tmp_path / "out"), "--json", "-q", slower])
    cases = {each["case"]: each for each in json.loads(capsys.readouterr().out)["cases"]}
    found = {each["metric"]: each["word"] for each in cases["collectives/ws2"]["findings"]}
    assert {name for name, word in found.items() if word != "pass"} == {"all_gather_busbw"}
    assert found["all_gather_busbw"] == "regressed"
    (gate,) = (tmp_path / "out").iterdir()
    arms = {arm: len(list((gate / arm).glob("collectives/*/*"))) for arm in ("baseline", "candidate")}
    assert arms == {"baseline": 4, "candidate": 4}


def test_a_failed_trial_is_no_measurement():
    ddp = case("ddp")
    broken = replace(failed(_placeholder_case(2, "cpu")), job=job_of("collectives", cases=[ddp.id]))
    (shown,) = analysed(broken, of=ddp).cases
    assert [verdict.gravity for verdict in shown.verdicts.values()] == ["unknown"]


def test_the_slowest_node_counts_and_trials_make_the_interval():
    ddp = case("ddp")
    node = {"group": "node"}
    trials = [
        record([row(2e9 * noise, **node), row(1e9 * noise, **node, ranks="2,3")], ddp, round_=number)
        for number, noise in enumerate((0.99, 1.0, 1.01))
    ]
    (result,) = collective_results(trials)
    assert result.busbw.value == pytest.approx(1e9, rel=1e-3)
    assert result.busbw.trials == 3
    # 4.30 standard errors of three trials that vary by 1%
    assert result.busbw.half_log_width == pytest.approx(4.30 * 0.01 / 3**0.5, rel=0.01)
    assert collective_results(trials[:1])[0].busbw.half_log_width is None, (
        "one trial tells nothing of the spread"
    )


def test_two_runs_are_compared_by_operation_size_dtype_and_group():
    ddp = case("ddp")

    def trials(pace: float, *more: dict[str, Any]) -> list[Record]:
        rows = [row(pace), row(2e9, dtype="bf16")]
        noisy = [[{**each, "busbw": each["busbw"] * noise} for each in (*rows, *more)] for noise in NOISE]
        return [record(own, ddp, round_=number) for number, own in enumerate(noisy)]

    before, after = trials(1e9), trials(0.5e9, row(1e9, op="broadcast"))
    assert {change.key.dtype: change.word for change in bandwidth_changes(before, after)} == {
        "fp32": "worse",
        "bf16": "same",
    }
    assert {change.word for change in bandwidth_changes(after, before) if change.key.dtype == "fp32"} == {
        "better"
    }
    text = comparison_sheet(before, after).to_text(80)
    assert "1 worse, 1 same of 2" in text.replace("same, 1 worse", "worse, 1 same")
    assert "1 measurement in only one of the runs" in text


def bytes_moved(size: int, seconds: float | None, **changed: Any) -> dict[str, Any]:
    about = {"rank": 0, "step": 0, "place": 0, "op": "all_reduce", "ran": "all_reduce", "dtype": "float32"}
    return {**about, "group_size": 2, "nodes": 1, "bytes": size, "transfer_s": seconds, **changed}


@pytest.mark.parametrize(
    ("messages", "share", "reason"),
    [
        # alone, 4 KiB take 1 ms and 12 KiB take 3 ms, so 8 KiB take 2 ms
        ([bytes_moved(8192, 0.004)], 0.5, ""),
        ([bytes_moved(4096, 0.001), bytes_moved(12288, 0.003)], 1.0, ""),
        ([bytes_moved(4096, 0.002), bytes_moved(8, 5.0)], 0.5, ""),
        ([bytes_moved(1 << 20, 0.004)], None, "outside the sizes that were measured alone"),
        ([bytes_moved(8192, None)], None, "times of individual collectives"),
        ([bytes_moved(8192, 0.004, nodes=2)], None, "this collective was not measured alone"),
        ([bytes_moved(8192, 0.004, dtype="bfloat16")], None, "this collective was not measured alone"),
    ],
)
def test_what_a_training_attains_is_measured_by_the_same_messages_alone(messages, share, reason):
    ddp = case("ddp")
    alone = record([row(4096e3, bytes=4096), row(4096e3, bytes=12288)], ddp)
    training = replace(measured(ddp), tables={"collectives": messages})
    (kind,) = {each.op: each for each in collective_traffic(training)}.values()
    found = CollectiveBaseline.from_results(collective_results([alone]), 2).utilization(training, kind)
    assert found.share == (None if share is None else pytest.approx(share))
    assert reason in found.reason
    run = analysed(alone, training, of=ddp)
    cells = all_views()["communication"].table(run).records()
    assert cells[0]["attained"] == found.share
    assert "of alone" in all_views()["communication"].table(run).headings
    assert "of alone" not in all_views()["communication"].table(analysed(training, of=ddp)).headings


@pytest.mark.train
@pytest.mark.parametrize("op", OPERATIONS)
def test_a_check_sees_a_result_that_is_not_there(op):
    import torch

    from distbench.worker.collective_operations import OPERATIONS as KNOWN
    from distbench.worker.collective_operations import GroupMembership

    members: Any = GroupMembership(None, (0, 1, 2), 1, torch.device("cpu"))  # type: ignore[arg-type]
    operation = KNOWN[op](members, 30, torch.bfloat16)
    operation.fill()
    assert operation.wrong_elements() > 0, "nothing has been sent"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Finished:
    from support.runs import run_in

    return run_in(tmp_path_factory.mktemp("collectives"), SUITE)


@pytest.mark.train
def test_every_operation_is_measured_and_right(run):
    assert run.code == 0, run.errors
    stored = RunAnalysis.read(run_of(run))
    records = [each for each in stored.records if each.job.kind == "collectives"]
    assert [each.status for each in records] == [Status.MEASURED] * 2
    found = {(each.key.op, each.key.dtype, each.key.bytes): each for each in collective_results(records)}
    assert set(found) == {
        (op, dtype, size) for op in OPERATIONS for dtype in ("fp32", "bf16") for size in (4096, 65536)
    }
    for result in found.values():
        assert result.wrong_elements == 0
        assert result.algbw * result.seconds == pytest.approx(result.key.bytes)
    for each in records[0].tables["collective_times"]:
        if not each["reason"]:
            assert each["algbw"] == pytest.approx(each["bytes"] / each["seconds"])
            assert each["busbw"] == pytest.approx(each["algbw"] * (bus_factor(each["op"], 2) or 0))
            # calls take turns at their slowest rank, so that the shortest may be above the mean on one rank
            assert 0 < each["fastest_s"] <= each["slowest_s"]
            assert each["seconds"] <= each["slowest_s"] * 1.001
    assert found["all_gather", "fp32", 4096].count == 512, "of a rank's share"
    assert found["all_reduce", "fp32", 4096].count == 1024
    (first, _) = records
    assert first.values["all_reduce_busbw"] > 0
    assert (first.columns["all_reduce_busbw"]["unit"], first.columns["all_reduce_busbw"]["better"]) == (
        "B/s",
        "higher",
    )
    assert "one node" in first.absent["all_reduce_between_busbw"]
    assert not list(run.folder.glob("prepare*")), "nothing is trained, so nothing is built"


@pytest.mark.train
def test_they_are_shown_compared_and_queried(run, distbench):
    shown = distbench("show", str(run.folder), "--view", "links").stdout
    assert "all_reduce, in place, 2 ranks (all)" in shown
    assert "All results are correct: 24 combinations" in shown
    assert "bus bandwidth" in (run.folder / "report.html").read_text().lower()
    beside = json.loads(distbench("compare", str(run.folder), str(run.folder), "--json").stdout)
    rows = beside[0]["jobs"]["collectives"]["rows"]
    assert [each["word"] for each in rows] == ["same"] * 24
    sql = "select count(*) as n from collective_times where \"group\" = 'all'"
    assert "48" in distbench("query", sql, str(run.folder)).stdout


@pytest.mark.train
def test_the_command_needs_no_suite(distbench, tmp_path):
    some = ["--operations", "all_reduce", "--sizes", "1KiB..4KiB", "--set", "collectives.trials=1"]
    some += ["--launcher", "kept", "--world-sizes", "2", "--out", str(tmp_path / "runs"), "-q"]
    done = distbench("collectives", *some)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if " fp32 " in line]
    assert [line[:5] for line in lines] == [
        ["1024", "256", "fp32", "sum", "-1"],
        ["4096", "1024", "fp32", "sum", "-1"],
    ]
    assert max(map(len, done.stdout.splitlines())) <= 80 or "report:" in done.stdout


@pytest.mark.train
@pytest.mark.deep
def test_ranks_of_two_nodes_form_groups_of_nodes(run_suite):
    text = SUITE.replace("world_sizes: [2]", "world_sizes: [4]").replace("[fp32, bf16]", "[fp32]")
    done = run_suite(f"{text}launcher: two_nodes\n")
    assert done.code == 0, done.errors
    records = [each for each in RunAnalysis.read(run_of(done)).records if each.job.kind == "collectives"]
    sizes = {(each.key.group, each.key.group_size) for each in collective_results(records)}
    assert sizes == {("all", 4), ("node", 2), ("between", 2)}
    assert all(result.wrong_elements == 0 for result in collective_results(records))


def run_of(finished: Finished) -> Any:
    from distbench.record.run_folder import Run

    return Run(finished.folder)

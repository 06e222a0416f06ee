"""The user's own dataset and its loader, on real ranks: the same training, and the price of waiting."""

import json
from typing import Any

import pytest

from distbench.analysis.losses.case_losses import SAME_LOSSES
from distbench.analysis.run import RunAnalysis
from distbench.analysis.step_limits import StepLimit, step_limit
from distbench.jobs.equivalence.arms import EQUIVALENT, ROUNDING
from distbench.record.run_folder import Run
from support.runs import call

SUITE = """
workload: {user: {model: "small:Small", length: 32}}
batch: {global_batch_size: 8, micro_batch_size: 2}
measure: {warmup: 5, steps: 9, trials: 1, profile_steps: 1}
metrics: [steptime, throughput, profile]
world_sizes: [2]
"""
CHECK = "check: {steps: 2, perturbed: 4, fp64: false}\n"
GRID = ["fsdp", "{zero: {stage: 3}}", "tp", "cp", "{pp: {micro_batches: 2}}"]


def test_a_loader_changes_the_speed_and_no_row(run_suite):
    done = run_suite(
        SUITE
        + """
data: {user: "datasets_of_users:Slow"}
loader: {workers: [0, 4], persistent_workers: [false, true]}
exclude: [{loader.workers: 0, loader.persistent_workers: true}]
strategies: [ddp]
"""
    )
    assert done.code == 0, done.errors
    # an epoch has 8 steps, so that workers begin a second one in the timed window
    assert len(done.cases) == 3
    assert {case["verdicts"]["losses"]["word"] for case in done.cases.values()} == {SAME_LOSSES}
    shown = json.loads(call("show", str(done.folder), "--view", "loader", "--json").stdout)
    assert len(shown["rows"]) == 3
    (alone,) = (row for row in shown["rows"] if row["workers"] == 0)
    # its two micro-batches of two rows take 80 ms, and workers make several at once
    assert alone["wait_s"] >= 0.08
    assert alone["lost"] > 0.05
    assert f"you lose {alone['lost']:.0%} of the throughput to data" in " ".join(shown["notes"])
    analysed = RunAnalysis.read(Run(done.folder))
    limits = {row.case.loader.workers: step_limit(row) for row in analysed.cases}
    assert isinstance(limits[0], StepLimit)
    assert (limits[0].word, limits[0].share) == ("data-bound", pytest.approx(alone["lost"]))


def test_labels_of_unequal_rows_are_weighed_over_the_global_batch(run_suite):
    done = run_suite(
        SUITE + CHECK + 'data: {user: {dataset: "datasets_of_users:Unequal", weigh_labels: true}}\n'
        "strategies: [ddp, {zero: {stage: 2}}]\n"
    )
    assert done.code == 0, done.errors
    assert len(done.verdicts) == 2
    assert set(done.verdicts.values()) <= {EQUIVALENT, ROUNDING}
    samples = done.record("ddp")["samples"]
    shares = [share for rank in samples["counted_token_share"] for share in rank]
    assert len(shares) == 18
    # 8 to 31 of 32 tokens have a label, and a step of a rank has four of the 64 rows
    assert 8 / 32 < min(shares) < max(shares) < 31 / 32


TOKENS = 'data: {user: {dataset: "datasets_of_users:Tokens", shift_labels: true, LAYOUT}}\n'


def counted_tokens(record: dict[str, Any]) -> tuple[float, float]:
    """Tokens of all timed steps, and those that have a label."""
    tokens, shares = (record["samples"][name] for name in ("computed_tokens", "counted_token_share"))
    each = [(n, share) for ranks in zip(tokens, shares, strict=True) for n, share in zip(*ranks, strict=True)]
    return sum(n for n, _ in each), sum(n * share for n, share in each)


@pytest.mark.parametrize(("sizes", "cases"), [("[2]", 6), pytest.param("[1, 2]", 10, marks=pytest.mark.deep)])
def test_rows_filled_up_to_the_longest_train_alike_and_count_what_was_computed(sizes, cases, run_suite):
    suite = SUITE.replace("world_sizes: [2]", f"world_sizes: {sizes}").replace("profile]", "utilisation]")
    suite += CHECK + "strategies: [single, ddp, {zero: {stage: 2}}]\n"
    suite += "axes: {data.user.padding: [longest, max_length]}\n"
    done = run_suite(suite + TOKENS.replace("LAYOUT", "padding: longest"))
    assert done.code == 0, done.errors
    assert set(done.verdicts.values()) <= {EQUIVALENT, ROUNDING}
    found: dict[str, set[tuple[float, int, float]]] = {}
    for file in done.folder.glob("trials/*/0/record.json"):
        record = done.read(file)
        padding, values = record["case"]["data"]["options"]["padding"], record["values"]
        tokens, labels = counted_tokens(record)
        found.setdefault(padding, set()).add((tokens, round(labels), values["flops_per_sample"]))
        # 9 steps of 8 rows
        assert values["tokens_per_s"] == pytest.approx(values["samples_per_s"] * tokens / 72)
        assert values["counted_tokens_per_s"] == pytest.approx(values["samples_per_s"] * labels / 72)
    ((most, labels, most_flops),) = found["max_length"]
    ((least, same_labels, least_flops),) = found["longest"]
    assert len(done.cases) == cases
    assert (most, labels) == (72 * 32, same_labels)
    assert labels < least < 0.8 * most
    # all products of the model are of one token
    assert least_flops == pytest.approx(most_flops * least / most, abs=1)


@pytest.mark.deep
@pytest.mark.parametrize("layout", ["padding: longest", "padding: longest, group_by_length: true"])
def test_rows_of_unequal_length_train_alike_in_each_engine_and_from_workers(run_suite, layout):
    more = (
        "{strategy: ddp, loader.workers: 1}, {strategy: ddp, engine: trainer}, "
        "{strategy: ddp, engine: fabric}, {strategy: zero3, engine: accelerate}"
    )
    done = run_suite(
        SUITE
        + CHECK
        + TOKENS.replace("LAYOUT", layout)
        + "strategies: [ddp, fsdp, {fsdp: {version: 1}}, {zero: {stage: 3}}]\n"
        f"include: [{more}]\n"
    )
    assert done.code == 0, done.errors
    ran = {name: each for name, each in done.cases.items() if each["status"] == "measured"}
    assert len(ran) == 8
    assert {done.cases[name]["equivalence"]["verdict"] for name in ran} <= {EQUIVALENT, ROUNDING}
    assert {each["verdicts"]["losses"]["word"] for each in ran.values()} == {SAME_LOSSES}


@pytest.mark.deep
def test_labels_of_unequal_rows_are_weighed_in_every_engine(run_suite):
    done = run_suite(
        SUITE.replace('user: {model: "small:Small", length: 32}', "transformer: {preset: tiny, seq_len: 32}")
        + CHECK
        + 'data: {user: {dataset: "datasets_of_users:Unequal", weigh_labels: true}}\n'
        + f"strategies: [{', '.join(GRID)}]\n"
    )
    assert done.code == 0, done.errors
    assert len(done.verdicts) == len(GRID)
    assert set(done.verdicts.values()) <= {EQUIVALENT, ROUNDING}


@pytest.mark.parametrize("loader", ["", "loader: {workers: 1}\n"], ids=["alone", "worker"])
def test_a_row_that_can_t_be_read_is_named_with_its_line(run_suite, loader):
    done = run_suite(SUITE + loader + 'data: {user: "datasets_of_users:Broken"}\nstrategies: [ddp]\n')
    (case,) = done.cases.values()
    assert case["status"] == "crashed"
    assert "datasets_of_users.py:" in case["reason"]
    assert "row 17 can't be read" in case["reason"]


def test_rows_that_depend_on_the_process_are_a_mismatch(run_suite):
    done = run_suite(SUITE + 'data: {user: "datasets_of_users:PerProcess"}\nstrategies: [ddp]\n')
    (case,) = done.cases.values()
    assert case["status"] == "mismatch"
    assert "another first global batch than rank 0" in case["reason"]


def test_a_stream_has_one_worker_at_most(run_suite):
    done = run_suite(
        SUITE + 'data: {user: "datasets_of_users:Stream"}\nloader: {workers: [1, 2]}\nstrategies: [ddp]\n'
    )
    told = {case["status"]: case["reason"] for case in done.cases.values()}
    assert set(told) == {"measured", "unsupported"}
    assert "use at most 1" in told["unsupported"]

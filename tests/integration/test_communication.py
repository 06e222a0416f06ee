"""What moves between real ranks: every collective seen, timed, and held against the textbook."""

import gzip
import json
import statistics
from collections.abc import Callable

import pytest

from distbench.analysis.communication import UNEXPLAINED_TOLERANCE, collective_traffic, compare_volume
from distbench.analysis.mesh_dimensions import call_count_mismatches, misplaced_traffic
from distbench.analysis.step_timeline import rank_steps
from distbench.cli import main
from distbench.metrics.profile.breakdown import STEP_PART_DOCS
from distbench.metrics.profile.step_timeline import MAX_INTERVALS
from distbench.record import Record
from distbench.record.run_folder import Run as RunFolder
from support.runs import Finished, run_in

RunSuite = Callable[..., Finished]

STRATEGIES = """
strategies:
  - single
  - ddp
  - fsdp: {sharding: [full, grad_op, hybrid]}
  - fsdp: {version: 1, sharding: [full, grad_op, hybrid]}
  - fsdp: {reduce_each_micro_batch: false}
  - zero: {stage: [0, 1, 2, 3]}
"""
SUITE = f"""
workload: {{transformer: {{dim: 64, depth: 3, heads: 4, kv_heads: 2, ffn_dim: 160, seq_len: 32}}}}
batch: {{global_batch_size: 8, gradient_accumulation_steps: 2}}
optimizer: {{clip_grad_norm: 1.0}}
measure: {{warmup: 1, steps: 2, trials: 1, profile_steps: 1}}
launcher: {{kept: {{oversubscribe: true}}}}
{STRATEGIES}
"""
PLANTED = """
workload: {user: {model: "small:Small", length: 32}}
data: text
batch: {global_batch_size: 8}
measure: {warmup: 1, steps: 3, trials: 1}
world_sizes: [2]
"""


def records(finished: Finished) -> dict[str, Record]:
    assert finished.code == 0, finished.errors
    found = {f"{r.case.name}": r for r in RunFolder(finished.folder).records() if r.status == "measured"}
    assert found
    return found


def by_label(finished: Finished) -> dict[str, Record]:
    return {record.case.label: record for record in records(finished).values()}


def wide(precision: str) -> object:
    return pytest.param(f"{precision}-wide", marks=pytest.mark.deep)


@pytest.fixture(scope="module", params=["fp32", "bf16", wide("fp32"), wide("bf16")])
def swept(request, matrix, tmp_path_factory) -> dict[str, Record]:
    """Every strategy with gradient accumulation and clipping: the shared matrix, or a wider one."""
    precision, _, is_wide = request.param.partition("-")
    if not is_wide:
        return records(matrix(precision))
    sizes = "world_sizes: [2, 4]" if precision == "fp32" else "world_sizes: [2]"
    folder = tmp_path_factory.mktemp(precision)
    return records(run_in(folder, f"{SUITE}\nprecision: {precision}\n{sizes}\n"))


def test_every_collective_that_was_counted_is_found_in_the_trace_with_its_time(swept):
    assert swept
    for name, record in swept.items():
        rows = record.tables["collectives"]
        assert not [flag for flag in record.tables["flags"] if "counted" in flag["reason"]], name
        assert all(row["seconds"] > 0 for row in rows), name
        assert all(row["transfer_s"] <= row["seconds"] for row in rows), name
        # of each collective at least one rank waited for nobody; a message may lie ready for a while
        shortest: dict[tuple[int, int, str], list[float]] = {}
        for row in (row for row in rows if row["op"] not in ("send", "recv")):
            shortest.setdefault((row["step"], row["place"], row["group"]), []).append(row["wait_s"])
        assert all(min(waits) == 0 for waits in shortest.values()), name


def test_the_bytes_of_every_strategy_are_the_textbooks_or_have_a_known_cause(swept):
    assert swept
    for name, record in swept.items():
        found = compare_volume(record)
        assert found is not None, name
        assert found.unexplained_share <= UNEXPLAINED_TOLERANCE, f"{name}: {found}"
        assert bool(found.measured) == (record.case.world_size > 1), name
        assert found.unexplained_by_op.keys() <= found.theory.keys(), (
            f"{name}: norms and flags are no payload"
        )
        assert misplaced_traffic(record) == call_count_mismatches(record) == "", name
        if record.case.label in ("ddp", "zero0", "fsdp-grad-op", "fsdp1-grad-op"):
            assert sum(found.measured.values()) == pytest.approx(sum(found.theory.values()), rel=0.01), name


def test_a_reader_sees_that_zero_2_communicates_as_ddp_does(swept):
    whole = {
        record.case.label
        for record in swept.values()
        if (v := compare_volume(record)) and v.all_reduces_gradients
    }
    # by theory stage 1 in bf16 is DeepSpeed's BF16_Optimizer, which all-reduces whole gradients
    in_bf16 = {record.case.precision.compute for record in swept.values()} == {"bf16"}
    assert {label.removesuffix("+offload") for label in whole} == (
        {"zero2"} if in_bf16 else {"zero1", "zero2"}
    )


def test_what_was_asked_for_and_what_ran_stand_side_by_side(swept):
    kinds = {(row.op, row.executed_op) for record in swept.values() for row in collective_traffic(record)}
    assert ("reduce_scatter", "all_reduce") in kinds, "gloo runs a reduce-scatter as an all-reduce"
    for record in swept.values():
        for row in collective_traffic(record):
            n = row.group_size
            whole = {"all_reduce": 2 * (n - 1) / n, "send": 1, "recv": 1}
            assert row.wire_bytes == pytest.approx(row.bytes * whole.get(row.executed_op, (n - 1) / n))


# in bf16 the grids have none on four ranks
@pytest.mark.parametrize("swept", ["fp32", wide("fp32")], indirect=True)
def test_a_hybrid_shard_talks_in_groups(swept):
    hybrid = [r for r in swept.values() if "hybrid" in r.case.label and r.case.world_size == 4]
    assert {record.case.label for record in hybrid} >= {"fsdp-hybrid", "fsdp1-hybrid"}
    for record in hybrid:
        rows = record.tables["collectives"]
        groups = {(row["op"], row["group"]) for row in rows if row["group_size"] == 2}
        assert {("all_gather", "0,1"), ("all_gather", "2,3")} <= groups
        assert {("all_reduce", "0,2"), ("all_reduce", "1,3")} <= groups


def test_the_parts_of_a_step_add_up_to_it_on_every_rank(swept):
    assert swept
    for name, record in swept.items():
        for rank, steps in enumerate(record.samples["profile_step_s"]):
            for number, step in enumerate(steps):
                found = [record.samples[f"profile_{part}_s"][rank][number] for part in STEP_PART_DOCS]
                assert sum(found) == pytest.approx(step, rel=1e-6), name
                assert min(found) > -1e-9, name
        assert record.values["profile_forward_s"] > 0, name
        assert record.values["profile_backward_s"] > 0, name
        assert record.values["profile_optimizer_s"] > 0, name
        exposed, comm = record.values["comm_exposed_s"], record.values["comm_s"]
        assert 0 <= exposed <= comm, name
        assert (comm > 0) == (record.case.world_size > 1), name


def test_the_step_that_is_kept_has_the_times_that_its_samples_have(swept):
    assert swept
    for name, record in swept.items():
        ranks = rank_steps(record)
        assert [step.rank for step in ranks] == [*range(record.case.world_size)], name
        kept = record.tables["timeline"][0]["step"]
        for step in ranks:
            numbers = {key: record.samples[key][step.rank][kept] for key in ("profile_step_s", "comm_s")}
            assert step.seconds == pytest.approx(numbers["profile_step_s"], abs=1e-6), name
            assert len(step.activities) <= MAX_INTERVALS, name
            assert 0 <= step.begin < step.seconds, f"{name}: one clock for all ranks of a node"
            moved = step.activities_of("communication")
            assert all(piece.group for piece in moved), name
            # of several groups at once comm_s counts the time only once
            assert sum(piece.busy for piece in moved) >= numbers["comm_s"] - 1e-4, name
            assert {"forward", "backward", "optimizer"} <= {
                piece.name for piece in step.activities_of("compute")
            }, name


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Finished:
    return run_in(tmp_path_factory.mktemp("planted"), PLANTED + "strategies: [ddp, chatty, sleepy]\n")


def test_an_extra_all_reduce_shows_as_bytes_without_a_cause(planted):
    found = by_label(planted)
    good, bad = compare_volume(found["ddp"]), compare_volume(found["chatty"])
    assert good and good.unexplained_share == 0
    assert bad and bad.unexplained_by_op == {"all_reduce": pytest.approx(bad.theory["all_reduce"])}
    assert bad.unexplained_share == pytest.approx(1)


def test_a_rank_that_sleeps_is_named_and_the_other_waits_for_it(planted):
    sleepy = by_label(planted)["sleepy"]
    waits = [statistics.fmean(rank) for rank in sleepy.samples["comm_wait_s"]]
    work = [statistics.fmean(rank) for rank in sleepy.samples["work_s"]]
    assert waits[0] > 0.1 > waits[1], "rank 0 waits for the 0.15 s that rank 1 sleeps"
    assert work[1] - work[0] > 0.1
    assert sleepy.values["imbalance"] > 1.2
    assert any("rank 1 works" in flag["reason"] for flag in sleepy.tables["flags"])
    assert list(planted.folder.glob("trials/sleepy-*/0/rank*.trace.json.gz")), "flagged: traces are kept"


def test_the_traces_that_are_kept_tell_the_same_as_the_record(planted, capsys):
    (trial,) = planted.folder.glob("trials/sleepy-*/0")
    assert main(["trace", str(trial), "--json"]) == 0
    tables = {name: table["rows"] for name, table in json.loads(capsys.readouterr().out)["tables"].items()}
    sleepy = by_label(planted)["sleepy"]
    for rank in (0, 1):
        steps = [row for row in tables["steps"] if row["rank"] == rank]
        recorded = {name: sleepy.samples[name][rank] for name in ("profile_step_s", "comm_exposed_s")}
        assert [row["seconds"] for row in steps] == pytest.approx(recorded["profile_step_s"], abs=1e-6)
        assert [row["exposed_comm_s"] for row in steps] == pytest.approx(recorded["comm_exposed_s"], abs=1e-6)
    reductions = [row for row in tables["collectives"] if row["op"] == "all_reduce"]
    # ranks enter the next one at about the same time, in any order
    longest = max((row for row in reductions if row["rank"] == 0), key=lambda row: row["wait_s"])
    assert longest["late_rank"] == 1 and longest["wait_s"] > 0.1
    waiting = [row for row in tables["losses"] if row["kind"] == "waiting for a rank"]
    assert waiting[0]["name"].startswith("rank 1 late in all_reduce") and waiting[0]["rank"] == 0
    # the mean of both ranks, of which one waits for at least 0.1 s
    assert waiting[0]["seconds"] > 0.05


def test_traces_are_kept_on_request_and_open_as_chrome_traces(run_suite):
    finished = run_suite(PLANTED + "strategies: [ddp]\n", "--keep-traces")
    files = sorted(finished.folder.glob("trials/*/0/rank*.trace.json.gz"))
    assert [file.name for file in files] == ["rank0.trace.json.gz", "rank1.trace.json.gz"]
    events = json.loads(gzip.decompress(files[0].read_bytes()))["traceEvents"]
    assert {"distbench::forward", "distbench::backward", "distbench::optimizer"} <= {
        e["name"] for e in events
    }
    # other tools read the steps by torch's own name
    theirs, ours = (
        sorted((e["ts"], e["ts"] + e["dur"], e["name"]) for e in events if e["name"].startswith(prefix))
        for prefix in ("ProfilerStep#", "distbench::step")
    )
    assert [name for *_, name in theirs] == [f"ProfilerStep#{i}" for i in range(len(ours))] != []
    assert all(a <= begin and end <= b for (a, b, _), (begin, end, _) in zip(theirs, ours, strict=True))


@pytest.mark.deep
def test_exposed_communication_agrees_with_the_time_that_steps_without_it_save(run_suite):
    # gradients that are views into the buckets: without them the difference holds copies as well
    finished = run_suite("""
workload: {mlp: {hidden: 3000}}
batch: {global_batch_size: 4}
world_sizes: [2]
measure: {warmup: 2, steps: 12, trials: 3, profile_steps: 6, unsynced_steps: 12}
strategies: [{ddp: {gradient_as_bucket_view: true}}]
""")
    trials = [r.values for r in RunFolder(finished.folder).records()]
    exposed = [values["comm_exposed_s"] for values in trials]
    saved = [values["comm_exposed_by_difference_s"] for values in trials]
    error = (max(exposed) - min(exposed) + max(saved) - min(saved)) / 2
    assert statistics.median(exposed) > 0.005
    assert abs(statistics.median(exposed) - statistics.median(saved)) < error + statistics.median(exposed) / 2

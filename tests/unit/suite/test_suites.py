"""The suites that are shipped: each one parses, plans, and says what it is."""

import json
from pathlib import Path

import pytest

from distbench.analysis.communication import UNEXPLAINED_TOLERANCE, compare_volume
from distbench.analysis.run import RunAnalysis
from distbench.core.machine import Machine
from distbench.metrics.profile.breakdown import STEP_PART_DOCS
from distbench.plan import make_plan
from distbench.record import Record
from distbench.record.run_folder import Run
from distbench.strategies.engine import MEMORY_KINDS
from distbench.suite import Suite, load_suite

SUITES = sorted((Path(__file__).parents[3] / "suites").glob("*.yaml"))
PACKAGES = dict.fromkeys(("torch", "deepspeed", "transformers", "scikit-learn", "safetensors"), "9")
CPUS = Machine("cpu", 2, PACKAGES, has_libaio=False, has_compiler=True)
# what reads the digits has to be installed for that suite to load
SHIPPED = [
    pytest.param(file, id=file.stem, marks=pytest.mark.train if file.stem == "convergence" else ())
    for file in SUITES
]
GPUS = Machine("cuda", 8, PACKAGES, has_libaio=True, has_compiler=True)


def machine_for(suite: Suite) -> Machine:
    return GPUS if suite.device == "cuda" else CPUS


def test_the_promised_suites_are_there():
    assert {file.stem for file in SUITES} >= {
        *("quickstart", "zero", "data_parallel", "fsdp", "offload"),
        *("scaling_strong", "scaling_weak", "gpu_cluster", "convergence", "checkpoint"),
    }


@pytest.mark.parametrize("file", SHIPPED)
def test_a_shipped_suite_plans(file):
    suite = load_suite(file)
    plan = make_plan(suite, machine_for(suite))
    assert suite.name == file.stem
    assert suite.description
    assert plan.trials
    assert make_plan(Suite.from_resolved(suite.to_resolved()), machine_for(suite)) == plan


@pytest.mark.parametrize("file", SHIPPED)
def test_a_shipped_suite_takes_the_gpus_of_a_gpu_machine(file):
    cases = [item.case for item in make_plan(load_suite(file), GPUS).cases]
    assert {case.device for case in cases} == {"cuda"}
    assert file.stem in ("quickstart", "network") or max(case.world_size for case in cases) == 8


def test_the_main_suite_has_every_strategy_at_both_world_sizes():
    cases = make_plan(load_suite(SUITES[0].parent / "zero.yaml"), CPUS).cases
    labels = {item.case.label for item in cases if item.case.world_size == 2}
    assert labels == {
        *("dp", "ddp", "fsdp1", "fsdp1-grad-op"),
        *("fsdp", "fsdp-grad-op", "fsdp-hybrid"),
        *("fsdp+offload", "fsdp-grad-op+offload", "fsdp-hybrid+offload"),
        *("zero0", "zero1", "zero2", "zero3", "zero1+offload", "zero2+offload", "zero3+offload"),
        "zero3+offload-params",
    }
    assert [item.case.label for item in cases if item.problem and item.case.world_size == 2] == ["dp"]


def test_the_strategies_of_a_suite_do_the_same_work():
    cases = [item.case for item in make_plan(load_suite(SUITES[0].parent / "zero.yaml"), CPUS).cases]
    assert {case.batch.global_batch_size for case in cases} == {16}
    assert len({(str(case.workload), str(case.data), case.optimizer, case.seed) for case in cases}) == 1


@pytest.mark.parametrize(
    ("device", "memory", "preset"),
    [
        ("cpu", None, "tiny"),
        ("cuda", None, "gpt2-small"),
        ("cuda", 16 << 30, "gpt2-small"),
        ("cuda", 40 << 30, "1b"),
        ("cuda", 80 << 30, "1b"),
        ("cuda", 141 << 30, "3b"),
        ("cuda", 288 << 30, "8b"),
    ],
)
def test_the_main_suite_trains_a_model_as_large_as_its_devices_want(device, memory, preset):
    machine = Machine(device, 8, PACKAGES, has_libaio=False, has_compiler=True, device_memory=memory)
    cases = [item.case for item in make_plan(load_suite(SUITES[0].parent / "zero.yaml"), machine).cases]
    assert {case.workload.options["preset"] for case in cases} == {preset}


# the others plan above; their bf16 cases take minutes on a CPU
@pytest.mark.train
@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("quickstart", ("--world-sizes=2",)),
        pytest.param("quickstart", (), marks=pytest.mark.deep),
        # the shared matrix has the others
        ("zero", ("--world-sizes=2", "--only=fsdp-*+offload")),
        pytest.param("zero", (), marks=pytest.mark.deep),
        pytest.param("data_parallel", (), marks=pytest.mark.deep),
    ],
)
def test_a_shipped_suite_runs_on_a_cpu(name, chosen, distbench, tmp_path):
    file = SUITES[0].parent / f"{name}.yaml"
    least = [f"--set=measure.{key}=1" for key in ("warmup", "steps", "trials")]
    done = distbench(
        "run",
        str(file),
        "--out",
        str(tmp_path),
        "--json",
        "--device=cpu",
        "--set=launcher=kept",
        # the machine of a test may be busy
        "--repeat-noisy=0",
        *least,
        *chosen,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cases = json.loads(done.stdout)["cases"]
    assert {case["status"] for case in cases} <= {"measured", "unsupported"}
    assert any(case["status"] == "measured" and case["world_size"] == 2 for case in cases)
    run = Run(Path(json.loads(done.stdout)["report"]).parent)
    assert RunAnalysis.read(run).parity.findings == {}, "all did the same work"
    for record in run.records():
        if record.status == "measured":
            assert_totals(record)


def assert_totals(record: Record) -> None:
    """Where time and memory went, and what moved: every part is there, and the parts make the whole."""
    values, name = record.values, record.case.name
    parts = [values[f"profile_{part}_s"] for part in STEP_PART_DOCS]
    assert sum(parts) == pytest.approx(values["profile_step_s"], rel=1e-6), name
    found = compare_volume(record)
    assert found is not None and found.unexplained_share <= UNEXPLAINED_TOLERANCE, f"{name}: {found}"
    if record.case.world_size > 1:
        assert all(row["seconds"] > 0 and row["bytes"] > 0 for row in record.tables["collectives"]), name
    # a toy model: DeepSpeed keeps gradients whole that lie in two partitions
    assert values["memory_states"] == pytest.approx(values["memory_states_theory"], rel=0.05), name
    for row in record.tables["memory"]:
        if row["phase"] != "theory":
            kinds = sum(row[kind] for kind in (*MEMORY_KINDS, "activations", "other"))
            assert kinds == row["allocated"] + row["host"], name

"""Environment variables of the ranks as an axis of a suite: their names, values, cases and launches."""

import json
from pathlib import Path

import pytest

from distbench.cli.gate_arms import ArmOptions
from distbench.core.case import EXECUTION_FIELDS, Case
from distbench.core.errors import UsageError
from distbench.core.machine import Machine
from distbench.core.measurement import TimeLimits
from distbench.plan import Plan, make_plan
from distbench.plan.references import reference_case
from distbench.run import trial_launch
from distbench.strategies.zero import Zero
from distbench.suite import Overrides, load_suite
from distbench.suite.variables import check_variables
from support.suites import SuiteText, refusal, write_suite

HERE = Machine("cpu", 2, {"torch": "2.13.0"}, has_libaio=False, has_compiler=True)
SUITE = SuiteText("""\
workload: {transformer: {dim: 32, depth: 1, heads: 2, ffn_dim: 64, seq_len: 32}}
data: synthetic
batch: {global_batch_size: 4}
world_sizes: [2]
strategies: [ddp, fsdp]
""")


def planned(tmp_path: Path, text: str) -> Plan:
    return make_plan(load_suite(write_suite(tmp_path, SUITE + text)), HERE)


def cases(tmp_path: Path, text: str) -> dict[str, Case]:
    return {item.case.name: item.case for item in planned(tmp_path, text).cases}


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("{OMP_NUM_THREADS: [1, 2]}", "threads: [1, 2]"),
        ("{RANK: 1}", "use world_sizes and launcher"),
        ("{SLURM_PROCID: 1}", "use world_sizes and launcher"),
        ("{MASTER_PORT: 29500}", "use world_sizes and launcher"),
        ('{CUDA_VISIBLE_DEVICES: "0,1"}', "use device and world_sizes"),
        ("{PYTHONPATH: lib}", "use environment, which names another Python"),
        ("{DS_ACCELERATOR: cpu}", "use device"),
        ("{NVIDIA_TF32_OVERRIDE: 1}", "use precision: {matmul: high}"),
        ("{DISTBENCH_CACHE: here}", "distbench's own"),
        ("{HF_TOKEN: x}", "records and pages contain the variables of a case"),
        ("{NCCL-ALGO: Ring}", "no name of a variable"),
        ("{1A: Ring}", "no name of a variable"),
        ("{NCCL_IB_DISABLE: true}", 'write 1, or "true" in quotes'),
        ("{NCCL_ALGO: }", "env: [{}, {NCCL_ALGO: VALUE}]"),
        ("{NCCL_ALGO: {a: 1}}", "expected text or a whole number, or a list of them"),
        ("{NCCL_ALGO: 1.50}", 'write "1.5" in quotes, in the digits that are meant'),
        ('{NCCL_ALGO: "a\\nb"}', "contains a line break or another control character"),
        ("{OPENAI_KEY: a}", "records and pages contain the variables"),
        ("{PGPASS: a}", "records and pages contain the variables"),
        ("NCCL_ALGO=Ring", "such as {NCCL_ALGO: Ring}"),
        ("[NCCL_ALGO=Ring]", "such as {NCCL_ALGO: Ring}"),
    ],
)
def test_a_mistake_says_what_to_write(section, told, tmp_path):
    found = refusal(write_suite(tmp_path, f"{SUITE}env: {section}\n"))
    assert found
    for line in found:
        assert line.startswith("mine.yaml:6: env")
        assert told in line


def test_variables_that_distbench_gives_to_its_ranks_are_refused(tmp_path):
    text = SUITE.replace("ddp, fsdp", "ddp, zero") + "compile: true\n"
    mine = load_suite(write_suite(tmp_path, text))
    machine = Machine(
        "cpu", 2, {"torch": "2.13.0", "deepspeed": "0.19.2"}, has_libaio=False, has_compiler=True
    )
    given: dict[str, str] = {}
    for task in make_plan(mine, machine).trials:
        given |= trial_launch(tmp_path, mine, task, TimeLimits()).variables
    # those of the sockets may be chosen
    set_here = {name for name in given if not name.endswith("_SOCKET_IFNAME")}
    assert {"OMP_NUM_THREADS", "PYTORCH_NVML_BASED_CUDA_CHECK"} <= set_here
    set_here |= set(Zero().environment(make_plan(mine, machine).cases[0].case))
    for name in set_here:
        assert check_variables({name: "1"}, ("env",))[0] is None, name


def test_each_value_is_a_case_with_a_name_and_an_id_of_its_own(tmp_path):
    plain, found = cases(tmp_path, ""), cases(tmp_path, "env: {NCCL_ALGO: [Ring, Tree], SIZE: 1}\n")
    assert [*found] == [
        f"{label}/ws2/mb2/fp32/NCCL_ALGO={value}" for value in ("Ring", "Tree") for label in ("ddp", "fsdp")
    ]
    assert found["ddp/ws2/mb2/fp32/NCCL_ALGO=Tree"].env == {"NCCL_ALGO": "Tree", "SIZE": "1"}
    assert len({case.id for case in [*plain.values(), *found.values()]}) == 6
    # whatever their order
    other = cases(tmp_path, "env: {SIZE: '1', NCCL_ALGO: Tree}\n")
    assert other["ddp/ws2/mb2/fp32"].id == found["ddp/ws2/mb2/fp32/NCCL_ALGO=Tree"].id


def test_an_empty_section_leaves_the_case_as_it_was(tmp_path):
    plain = cases(tmp_path, "")
    found = cases(tmp_path, "env: [{}, {LD_PRELOAD: /usr/lib/libjemalloc.so}]\n")
    assert [*found][0::2] == ["ddp/ws2/mb2/fp32/env={}", "ddp/ws2/mb2/fp32/LD_PRELOAD=libjemalloc.so"]
    assert found["ddp/ws2/mb2/fp32/env={}"].id == plain["ddp/ws2/mb2/fp32"].id


def test_an_exclude_compares_values_as_text(tmp_path):
    found = cases(tmp_path, 'env: {SIZE: [1, 2]}\nexclude: [{env.SIZE: "1", strategy: ddp}]\n')
    assert [*found] == [
        f"{head}/SIZE={size}"
        for head, size in (("fsdp/ws2/mb2/fp32", 1), ("ddp/ws2/mb2/fp32", 2), ("fsdp/ws2/mb2/fp32", 2))
    ]


def test_cases_that_differ_in_a_variable_alone_do_the_same_work(tmp_path):
    one, other = (cases(tmp_path, f"env: {{SIZE: {size}}}\n")["ddp/ws2/mb2/fp32"] for size in (1, 2))
    assert one.work_key() != other.work_key()
    assert one.work_key(EXECUTION_FIELDS) == other.work_key(EXECUTION_FIELDS)
    assert reference_case(one).id == reference_case(other).id
    assert reference_case(one).env == {}


def test_the_processes_of_a_case_start_with_its_variables(tmp_path):
    plan = planned(tmp_path, "env: {NCCL_ALGO: [Ring, Tree]}\n")
    mine = load_suite(write_suite(tmp_path, SUITE + "env: {NCCL_ALGO: [Ring, Tree]}\n"))
    launched = [
        trial_launch(tmp_path, mine, task, TimeLimits()).variables["NCCL_ALGO"] for task in plan.trials[:4]
    ]
    assert launched == ["Ring", "Ring", "Tree", "Tree"]


def test_a_resolved_suite_gives_the_same_cases_again(tmp_path):
    mine = load_suite(write_suite(tmp_path, SUITE + "env: {NCCL_ALGO: [Ring, Tree], SIZE: 1}\n"))
    again = type(mine).from_resolved(json.loads(json.dumps(mine.to_resolved())))
    ids = [[item.case.id for item in make_plan(each, HERE).cases] for each in (mine, again)]
    assert ids[0] == ids[1]
    assert len(ids[0]) == 4
    assert "env" not in load_suite(write_suite(tmp_path, SUITE)).to_resolved()


def test_an_arm_of_a_gate_sets_no_variable_that_its_suite_sets(tmp_path):
    file = write_suite(tmp_path, SUITE + "env: {NCCL_ALGO: Ring, SIZE: [1, 2]}\n")
    assert ArmOptions(Overrides(), {"OTHER": "1"}, ()).arm(file).target.environment == {"OTHER": "1"}
    for name in ("NCCL_ALGO", "SIZE"):
        with pytest.raises(UsageError, match=f"{name}: env of the suite sets it"):
            ArmOptions(Overrides(), {name: "1"}, ()).arm(file)


def test_a_value_on_the_command_line_replaces_an_axis(tmp_path):
    file = write_suite(tmp_path, SUITE + "env: {SIZE: [1, 2]}\n")
    mine = load_suite(file, Overrides(set=["env.SIZE=3", "env.OTHER=a"]))
    assert {tuple(item.case.env.items()) for item in make_plan(mine, HERE).cases} == {
        (("OTHER", "a"), ("SIZE", "3"))
    }


@pytest.mark.parametrize("excluded", ["{A: 1}", '{A: "1"}'])
def test_a_whole_section_is_excluded(excluded, tmp_path):
    both = cases(tmp_path, "env: [{}, {A: 1}]\n")
    assert [each.env for each in both.values()] == [{}, {}, {"A": "1"}, {"A": "1"}]
    some = cases(tmp_path, f"env: [{{}}, {{A: 1}}]\nexclude: [{{env: {excluded}}}]\n")
    assert [each.env for each in some.values()] == [{}, {}]
    others = cases(tmp_path, "env: [{}, {A: 1}]\nexclude: [{env: {}}]\n")
    assert [each.env for each in others.values()] == [{"A": "1"}, {"A": "1"}]

"""Plans: which cases a suite makes on a machine, in which order, and what is known before launch."""

import dataclasses
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from distbench.core import registry
from distbench.core.case import Batch, PluginChoice
from distbench.core.errors import SuiteError
from distbench.core.job import PlannedTrial, job_kind
from distbench.core.machine import Machine
from distbench.core.measurement import SuiteLimits, TimeLimits
from distbench.metrics.telemetry.fake_nvml import FakeGpu, FakeNvml
from distbench.plan import Plan, make_plan
from distbench.plan.time_limits import all_trial_limits, prepare_limit, trial_limits
from distbench.run import trial_launch
from distbench.suite import Overrides, Suite, load_suite
from distbench.system.machine import detect_machine, ops_folder, unsupported_gpu_text
from distbench.system.visible_gpus import find_visible_gpus
from distbench.workloads.transformer import PRESETS
from support.suites import SuiteText, write_suite

ALL = dict.fromkeys(("torch", "deepspeed", "transformers", "scikit-learn", "numpy", "safetensors"), "9")
CPU = Machine(device="cpu", devices=2, packages=ALL, has_libaio=False, has_compiler=True)
GPUS = Machine(device="cuda", devices=8, packages=ALL, has_libaio=True, has_compiler=True)

MINIMAL = SuiteText("""\
workload: transformer
batch: {global_batch_size: 8}
strategies: [ddp]
world_sizes: [1, 2]
""")


@pytest.fixture
def suite(tmp_path):
    def read(text: str, **overrides) -> Suite:
        file = write_suite(tmp_path, text, "mine.yaml")
        return load_suite(file, Overrides(**overrides))

    return read


def names(plan: Plan) -> list[str]:
    return [item.case.name for item in plan.cases]


def refusal(suite: Suite, machine: Machine = CPU) -> list[str]:
    with pytest.raises(SuiteError) as refused:
        make_plan(suite, machine)
    return [str(mistake).replace(suite.file, "mine.yaml") for mistake in refused.value.mistakes]


def test_a_case_is_named_by_what_matters(suite):
    assert names(make_plan(suite(MINIMAL), CPU)) == ["ddp/ws1/mb8/fp32", "ddp/ws2/mb4/fp32"]


def test_what_else_varies_stands_in_the_name(suite):
    text = MINIMAL + "optimizer: {lr: [0.1, 0.01]}\nworld_sizes: [2]\n".replace("world_sizes: [2]\n", "")
    assert names(make_plan(suite(text, world_sizes=[2]), CPU)) == [
        "ddp/ws2/mb4/fp32/lr=0.1",
        "ddp/ws2/mb4/fp32/lr=0.01",
    ]


def test_names_are_unique_where_labels_are_not(suite):
    text = MINIMAL.replace("[ddp]", "[{zero: {stage: 3, max_reuse_distance: [0, 100]}}]")
    found = names(make_plan(suite(text, world_sizes=[1]), CPU))
    assert found == [f"zero3/ws1/mb8/fp32/max_reuse_distance={i}" for i in (0, 100)]


def test_single_takes_part_once_whatever_the_world_sizes(suite):
    plan = make_plan(suite(MINIMAL.replace("[ddp]", "[single, ddp]"), world_sizes=[2]), CPU)
    assert names(plan) == ["single/ws1/mb8/fp32", "ddp/ws2/mb4/fp32"]


@pytest.mark.parametrize(
    ("mode", "machine", "said"),
    [
        ("true", CPU, None),
        ("max-autotune", CPU, None),
        ("reduce-overhead", CPU, "uses CUDA graphs, which do not exist on a CPU; use compile: true"),
        ("true", dataclasses.replace(CPU, has_compiler=False), "torch.compile needs a C++ compiler, but"),
        ("false", dataclasses.replace(CPU, has_compiler=False), None),
    ],
)
def test_what_can_not_be_compiled_here_is_known_before_launch(suite, mode, machine, said):
    (item,) = make_plan(suite(f"{MINIMAL}compile: {mode}\n", world_sizes=[2]), machine).cases
    assert said in item.problem if said else item.problem is None
    assert item.case.compile == {"true": "default", "false": "none"}.get(mode, mode)


def test_compile_is_an_axis_and_takes_no_part_in_the_name_or_id_of_a_case_without_it(suite):
    plain = make_plan(suite(MINIMAL, world_sizes=[2]), CPU)
    both = make_plan(suite(f"{MINIMAL}compile: [false, true]\n", world_sizes=[2]), CPU)
    assert names(both) == ["ddp/ws2/mb4/fp32/compile=false", "ddp/ws2/mb4/fp32/compile=true"]
    assert both.cases[0].case.id == plain.cases[0].case.id


def test_an_unknown_mode_of_compile_is_refused(suite):
    with pytest.raises(
        SuiteError, match="compile = 'fast': expected true or false, or one of max-autotune, "
    ):
        suite(f"{MINIMAL}compile: fast\n")


@pytest.mark.parametrize(
    ("devices", "nodes", "sizes"),
    [
        (1, 1, [1]),
        (2, 1, [1, 2]),
        (6, 1, [1, 2, 4, 6]),
        (8, 1, [1, 2, 4, 8]),
        (2, 2, [1, 2]),
        (6, 2, [1, 2, 3, 6]),
        (12, 3, [1, 2, 4, 8, 12]),
    ],
)
def test_auto_world_sizes_are_powers_of_two_in_a_node_and_of_nodes(suite, devices, nodes, sizes):
    machine = Machine("cpu", devices, ALL, has_libaio=False, has_compiler=True, nodes=nodes)
    plan = make_plan(suite(MINIMAL.replace("[1, 2]", "auto").replace("8", "24")), machine)
    assert [item.case.world_size for item in plan.cases] == sizes


@pytest.mark.parametrize(
    ("options", "devices", "nodes", "mesh", "told"),
    [
        ("", 8, 2, {"dp_replicate": 2, "dp_shard": 4}, None),
        ("", 8, 1, {"dp_replicate": 2, "dp_shard": 4}, None),
        ("", 8, 4, {"dp_replicate": 2, "dp_shard": 4}, "groups of 4 ranks, but nodes have 2 devices"),
        (", shards: 2", 8, 4, {"dp_replicate": 4, "dp_shard": 2}, None),
        (", shards: 4", 8, 4, {"dp_replicate": 2, "dp_shard": 4}, None),
        (", shards: 3", 8, 4, {"dp_replicate": 2, "dp_shard": 4}, "divisible by shards: 8 ranks, shards = 3"),
    ],
)
def test_a_hybrid_shard_is_inside_nodes_unless_its_size_says_otherwise(
    suite, options, devices, nodes, mesh, told
):
    machine = Machine("cpu", devices, ALL, has_libaio=False, has_compiler=True, nodes=nodes)
    text = MINIMAL.replace("[ddp]", f"[fsdp: {{sharding: hybrid{options}}}]")
    (item,) = make_plan(suite(text, world_sizes=[devices]), machine).cases
    assert told in item.problem if told else item.problem is None
    if item.problem is None:
        assert registry.create_plugin("strategies", item.case.strategy).mesh_sizes(devices) == mesh


@pytest.mark.parametrize(("version", "fitting"), [(2, "1, 2, 4"), (1, "1, 2")])
def test_copies_that_do_not_divide_the_ranks_are_refused_with_the_nearest_that_do(suite, version, fitting):
    text = MINIMAL.replace("[ddp]", f"[{{fsdp: {{sharding: hybrid, replicas: 3, version: {version}}}}}]")
    (item,) = make_plan(suite(text.replace("[1, 2]", "[4]")), Machine("cpu", 4, ALL, False, True)).cases
    assert item.problem.endswith(f"4 ranks, replicas = 3; nearest values that fit: {fitting}")


def test_a_hybrid_shard_of_cut_layers_has_groups_of_both(suite):
    machine = Machine("cpu", 8, ALL, has_libaio=False, has_compiler=True, nodes=2)
    model = "workload: {transformer: {kv_heads: 4}}"

    def planned(options: str):
        text = MINIMAL.replace("[ddp]", f"[fsdp: {{sharding: hybrid, mesh: {{tp: 2}}{options}}}]")
        lines = [line for line in text.splitlines() if not line.startswith("workload")]
        (item,) = make_plan(suite("\n".join([model, *lines]) + "\n", world_sizes=[8]), machine).cases
        return item

    assert planned("").problem is None
    live = registry.create_plugin("strategies", planned("").case.strategy)
    assert live.mesh_sizes(8) == {"dp_replicate": 2, "dp_shard": 2, "tp": 2}
    assert "groups of 8 ranks, but nodes have 4 devices" in planned(", replicas: 1").problem
    assert "set shards: 2, or shards: 4" in planned(", replicas: 1").problem
    assert (
        "data-parallel ranks divisible by replicas: 4 ranks, replicas = 3" in planned(", replicas: 3").problem
    )


@pytest.mark.parametrize(
    ("batch", "micro", "steps"),
    [
        ("{global_batch_size: 8}", 4, 1),
        ("{global_batch_size: 8, micro_batch_size: 1}", 1, 4),
        ("{global_batch_size: 8, gradient_accumulation_steps: 2}", 2, 2),
        ("{per_device_batch_size: 8}", 8, 1),
        ("{per_device_batch_size: 8, micro_batch_size: 2}", 2, 4),
    ],
)
def test_what_is_left_out_of_a_batch_is_derived(suite, batch, micro, steps):
    (item,) = make_plan(suite(MINIMAL.replace("{global_batch_size: 8}", batch), world_sizes=[2]), CPU).cases
    found = item.case.batch
    assert (found.micro_batch_size, found.gradient_accumulation_steps) == (micro, steps)
    assert found.global_batch_size == micro * steps * 2


def test_weak_scaling_grows_the_global_batch(suite):
    plan = make_plan(suite(MINIMAL.replace("global", "per_device")), CPU)
    assert [item.case.batch.global_batch_size for item in plan.cases] == [8, 16]


def test_threads_are_shared_out_over_the_largest_world_size(suite):
    machine = Machine("cpu", 8, ALL, has_libaio=False, has_compiler=True)
    assert {item.case.threads for item in make_plan(suite(MINIMAL), machine).cases} == {4}
    assert {item.case.threads for item in make_plan(suite(MINIMAL + "threads: 3\n"), machine).cases} == {3}


def test_rounds_are_interleaved_and_every_second_one_reversed(suite):
    plan = make_plan(suite(MINIMAL + "measure: {trials: 3}\n"), CPU)
    one, two = (item.case for item in plan.cases)
    expected = [(0, one), (0, two), (1, two), (1, one), (2, one), (2, two)]
    assert [(task.round, task.case) for task in plan.trials] == expected


def test_a_sequential_order_keeps_the_rounds_of_a_case_together(suite):
    plan = make_plan(suite(MINIMAL + "measure: {trials: 2, order: sequential}\n"), CPU)
    one, two = (item.case for item in plan.cases)
    assert [(task.round, task.case) for task in plan.trials] == [(0, one), (1, one), (0, two), (1, two)]


def test_include_adds_cells_with_some_fields_replaced(suite):
    text = (
        MINIMAL.replace("[ddp]", "[ddp, fsdp]")
        + "include: [{strategy: fsdp, world_size: 2, precision: bf16}]\n"
    )
    assert names(make_plan(suite(text), CPU))[-1] == "fsdp/ws2/mb4/bf16"
    assert len(make_plan(suite(text), CPU).cases) == 5


def test_exclude_drops_the_cells_that_have_all_of_its_values(suite):
    text = MINIMAL.replace("[ddp]", "[ddp, fsdp]") + "precision: [fp32, bf16]\n"
    text += "exclude:\n- {strategy: 'fs*', precision: bf16}\n- {world_size: 1, batch.micro_batch_size: 8}\n"
    assert names(make_plan(suite(text), CPU)) == ["ddp/ws2/mb4/fp32", "fsdp/ws2/mb4/fp32", "ddp/ws2/mb4/bf16"]


def test_an_excluded_plug_in_may_list_values_of_its_options(suite):
    text = MINIMAL.replace("transformer", "{transformer: {depth: [1, 2, 3]}}")
    text += "exclude: [{workload: {transformer: {depth: [1, 3]}}}]\n"
    cases = make_plan(suite(text), CPU).cases
    assert [item.case.workload.options["depth"] for item in cases] == [2, 2]


def test_values_that_do_not_go_together_can_be_excluded(suite):
    text = MINIMAL + "optimizer: {name: [adamw, sgd], momentum: [0, 0.9]}\n"
    assert "only sgd and muon have momentum" in refusal(suite(text))[0]
    text += "exclude: [{optimizer.name: adamw, optimizer.momentum: 0.9}]\n"
    assert len(make_plan(suite(text), CPU).cases) == 6


def test_only_keeps_labels_and_names(suite):
    text = MINIMAL.replace("[ddp]", "[ddp, {zero: {stage: [1, 2]}}]")
    assert names(make_plan(suite(text, only=["zero*"], world_sizes=[1]), CPU)) == [
        "zero1/ws1/mb8/fp32",
        "zero2/ws1/mb8/fp32",
    ]
    for glob in ("ddp/ws2*", "ddp/ws2", "d*/ws2"):
        assert names(make_plan(suite(text, only=[glob]), CPU)) == ["ddp/ws2/mb4/fp32"]
    assert refusal(suite(text, only=["zreo*"])) == [
        "--only 'zreo*': only[0] = 'zreo*': matches no case; labels: ddp, zero1, zero2"
    ]


GATED = MINIMAL.replace("[ddp]", "[ddp, {zero: {stage: [1, 2]}}]")


@pytest.mark.parametrize("glob", ["zreo*", "*offlaod", "zreo2/ws2", "zreo*/ws2/*"])
def test_tolerances_for_no_case_at_all_are_a_mistake(suite, glob):
    (mistake,) = refusal(suite(f"{GATED}gate: {{strategies: {{'{glob}': {{tokens_per_s: 5%}}}}}}\n"))
    assert mistake.endswith(f"'{glob}': matches no case; labels: ddp, zero1, zero2")


@pytest.mark.parametrize(
    "glob",
    ["zero2/w2", "zero2/ws2/mb4/fb16", "zero2/2", "zero2*/fp23", "zero2/mb4/ws2", "zero2/ws2/mb4/fp32/lr=1"],
)
def test_a_mistake_behind_the_label_of_tolerances_is_told_with_the_cases_of_that_label(suite, glob):
    (mistake,) = refusal(suite(f"{GATED}gate: {{strategies: {{'{glob}': {{tokens_per_s: 5%}}}}}}\n"))
    assert mistake.startswith("mine.yaml:5: gate.strategies.")
    (label,) = {part for part in ("zero2", "zero2*") if glob.startswith(f"{part}/")}
    assert mistake.endswith(f"matches no case; cases of {label}: zero2/ws1/mb8/fp32, zero2/ws2/mb4/fp32")


@pytest.mark.parametrize("glob", ["zero*", "*", "*ero2", "zero2/ws2", "*/ws2/*", "zero2/ws2/mb4/fp32"])
def test_tolerances_for_some_case_are_taken(suite, glob):
    text = f"{GATED}gate: {{strategies: {{'{glob}': {{tokens_per_s: 5%}}}}}}\n"
    assert make_plan(suite(text), CPU).cases
    assert suite(text).gate.tolerances_for("zero2", "zero2/ws2/mb4/fp32").tokens_per_s == 0.05


@pytest.mark.parametrize("glob", ["zero2/ws64", "*/ws64/*", "*ws64*", "zero*/ws[48]/mb?/tf*", "zero2/*/bf16"])
def test_tolerances_may_be_for_other_machines_and_precisions(suite, glob):
    text = f"{GATED}gate: {{strategies: {{'{glob}': {{tokens_per_s: 5%}}}}}}\n"
    assert make_plan(suite(text, world_sizes=[1]), CPU).cases


def test_a_case_has_the_same_id_whatever_stands_beside_it(suite):
    alone = make_plan(suite(MINIMAL, world_sizes=[2]), CPU).cases[0].case
    beside = make_plan(suite(MINIMAL.replace("[ddp]", "[single, fsdp, ddp]")), CPU).cases[-1].case
    assert alone.id == beside.id


def test_what_is_resolved_makes_the_same_plan(suite):
    text = MINIMAL.replace("[ddp]", "[ddp, {zero: {stage: [1, 2]}}]") + "precision: [fp32, bf16]\n"
    text += (
        "include: [{strategy: ddp, optimizer.lr: [0.1, 0.2]}]\nexclude: [{world_size: 1, precision: bf16}]\n"
    )
    before = suite(text)
    assert make_plan(Suite.from_resolved(before.to_resolved()), CPU) == make_plan(before, CPU)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("global_batch_size: 8", "global_batch_size: 7"),
            "mine.yaml:2: batch.global_batch_size = 7: is not divisible by world size 2; use 6 or 8",
        ),
        (
            ("global_batch_size: 8", "global_batch_size: 8, micro_batch_size: 8"),
            "batch.global_batch_size = 8: is not divisible by world size x micro_batch_size = 2 x 8; use 16",
        ),
        (
            ("transformer", "{transformer: {heads: 6}}"),
            "mine.yaml:1: workload.transformer.heads = 6: does not divide dim = 128",
        ),
        (
            ("transformer", "{transformer: {depth: 1, vocab_size: 100}}"),
            "mine.yaml:1: workload.transformer.vocab_size = 100: ",
        ),
        (
            ("strategies", "data: {text: {path: no_such_file.txt}}\nstrategies"),
            "mine.yaml:3: data.text.path = 'no_such_file.txt': ",
        ),
        (("[1, 2]", "[1, 2, 4]"), "mine.yaml:4: world_sizes[2] = 4: 4 ranks need 4 CPU cores"),
        (
            ("[ddp]", "[ddp, {ddp: {bucket_cap_mb: 25}}]"),
            "strategies[1].ddp = 'ddp/ws1/mb8/fp32': duplicates strategies[0].ddp (line 3)",
        ),
        (
            ("[ddp]", "[{zero: {stage: [1, 2], overlap_comm: [true, true]}}]"),
            "strategies[0].zero.overlap_comm[1] = 'zero1+overlap/ws1/mb8/fp32': duplicates "
            "strategies[0].zero.overlap_comm[0] (line 3); remove one of them",
        ),
    ],
)
def test_what_can_not_work_is_known_before_launch(suite, change, message):
    found = refusal(suite(MINIMAL.replace(*change)))
    assert message in found[0]
    assert len(found) == 1


def test_all_that_can_not_work_is_said_at_once(suite):
    text = MINIMAL.replace("transformer", "{transformer: {heads: [4, 6]}}").replace("[1, 2]", "[1, 3]")
    found = refusal(suite(text))
    assert [mistake.split(" = ")[0] for mistake in found] == [
        "mine.yaml:1: workload.transformer.heads[1]",
        "mine.yaml:2: batch.global_batch_size",
        "mine.yaml:4: world_sizes[1]",
    ]


def test_each_mistake_in_a_model_is_said_of_its_own_option(suite):
    two = "{transformer: {heads: 5, kv_heads: 2}}"
    assert refusal(suite(MINIMAL.replace("transformer", two))) == [
        "mine.yaml:1: workload.transformer.heads = 5: does not divide dim = 128",
        "mine.yaml:1: workload.transformer.kv_heads = 2: does not divide heads = 5",
    ]
    of_users = '{user: {model: "nosuch", kind: features, target_length: 3}}'
    said = refusal(suite(MINIMAL.replace("transformer", of_users)))
    assert [each.split(": ")[1] for each in said] == [
        "workload.user.model = 'nosuch'",
        "workload.user.target_length = 3",
    ]


def test_a_world_size_that_the_machine_chose_is_no_mistake_of_the_suite(suite):
    plan = make_plan(suite(MINIMAL.replace("[1, 2]", "auto")), Machine("cpu", 3, ALL, False, True))
    assert [item.problem for item in plan.cases] == [
        None,
        None,
        "batch.global_batch_size = 8 is not divisible by world size 3; use 6 or 9",
    ]
    assert {task.case.world_size for task in plan.trials} == {1, 2}


def test_what_this_machine_can_not_run_is_unsupported_with_a_reason(suite):
    plan = make_plan(suite(MINIMAL.replace("[ddp]", "[dp]"), world_sizes=[2]), CPU)
    assert plan.cases[0].problem == "nn.DataParallel needs CUDA devices"
    assert plan.trials == []


def test_a_package_that_is_missing_is_a_reason_too(suite):
    light = Machine("cpu", 2, {}, has_libaio=False, has_compiler=False)
    assert "torch is not installed" in str(make_plan(suite(MINIMAL), light).cases[0].problem)


ZERO = MINIMAL.replace("[ddp]", "[{zero: {stage: 2}}]").replace("[1, 2]", "[2]")


def problem_of(suite: Suite, machine: Machine) -> str:
    (item,) = make_plan(suite, machine).cases
    return item.problem or ""


HUGE = MINIMAL.replace("transformer", "{transformer: {preset: 70b}}")


def test_a_model_whose_states_fit_nowhere_is_unsupported_before_anything_is_built(suite):
    def problem(strategy: str, ranks: int, **machine) -> str:
        text = HUGE.replace("[ddp]", f"[{strategy}]").replace("[1, 2]", f"[{ranks}]").replace("8}", "64}")
        return problem_of(suite(text), dataclasses.replace(GPUS, devices=ranks, **machine))

    # weights, gradients and two moments in fp32 are 16 bytes a parameter
    assert problem("ddp", 2, device="cpu", memory=24 << 30) == (
        f"the model does not fit: the model states of {PRESETS['70b'].parameters():,} parameters need "
        "1.03 TiB on each of 2 ranks by theory, and this machine has 24.0 GiB of memory; use a smaller "
        "model, more devices, or a strategy that shards or offloads more"
    )
    assert problem("fsdp", 4, device="cpu", memory=1 << 40) != "", "on a CPU the ranks share the memory"
    assert problem("fsdp", 4, device="cpu", memory=1100 << 30) == problem("fsdp", 4, device="cpu") == ""
    assert "a GPU of this machine has 80.0 GiB" in problem("fsdp", 8, device_memory=80 << 30)
    assert problem("fsdp", 16, device_memory=80 << 30) == ""
    assert problem("{fsdp: {cpu_offload: true}}", 8, device_memory=80 << 30) == ""


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("DISTBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.drill("no C++ compiler")
def test_zero_on_a_cpu_without_a_compiler_is_unsupported_unless_its_op_is_built(suite, cache, drill):
    bare, zero = dataclasses.replace(CPU, has_compiler=False), suite(ZERO)
    problem = problem_of(zero, bare)
    drill.seen(problem)
    assert "C++ op deepspeed_shm_comm must be built, but no C++ compiler was found; install one" in problem
    assert problem_of(zero, dataclasses.replace(GPUS, has_compiler=False)) == "", "on GPUs it needs no op"
    library = ops_folder(bare.prefix, ALL, "cpu") / "deepspeed_shm_comm" / "deepspeed_shm_comm.so"
    library.parent.mkdir(parents=True)
    library.touch()
    assert problem_of(zero, bare) == ""


@pytest.mark.drill("no ninja")
def test_zero_on_a_cpu_without_ninja_is_unsupported(suite, cache, drill):
    problem = problem_of(suite(ZERO), dataclasses.replace(CPU, has_ninja=False))
    drill.seen(problem)
    assert "deepspeed_shm_comm with ninja, which is not installed; pip install ninja" in problem


@pytest.mark.parametrize(("cxx", "has_one"), [("no-such-compiler", False), ("env g++", True)])
def test_the_compiler_is_the_one_that_cxx_names(monkeypatch, cxx, has_one):
    monkeypatch.setenv("CXX", cxx)
    assert detect_machine("cpu").has_compiler is has_one


def test_ninja_is_found_beside_a_python_whose_environment_is_not_activated(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    assert not detect_machine("cpu").has_ninja
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "ninja").touch(mode=0o755)
    assert detect_machine("cpu").has_ninja


def test_tf32_is_other_work_with_a_name_of_its_own_and_nobody_elses_id_changes(suite):
    (fp32,), (tf32,), (spelt,) = (
        make_plan(suite(f"{MINIMAL.replace('[1, 2]', '[1]')}precision: {precision}\n"), GPUS).cases
        for precision in ("fp32", "{compute: fp32, matmul: high}", "{compute: fp32, matmul: highest}")
    )
    assert (fp32.case.name, tf32.case.name) == ("ddp/ws1/mb8/fp32", "ddp/ws1/mb8/tf32")
    assert fp32.case.id == spelt.case.id != tf32.case.id


def test_cuda_on_a_machine_without_one_is_a_mistake(suite):
    none = Machine("cuda", 0, ALL, has_libaio=False, has_compiler=True)
    (mistake,) = refusal(suite(MINIMAL, device="cuda"), none)
    assert mistake.startswith("--device cuda: device = 'cuda': no CUDA device")


def test_a_gpu_of_amd_is_told_as_not_supported(tmp_path):
    assert unsupported_gpu_text(tmp_path / "kfd") == ""
    (tmp_path / "kfd").touch()
    assert "ROCm" in unsupported_gpu_text(tmp_path / "kfd")


CPUINFO = """processor : 0
vendor_id : GenuineIntel
cpu MHz : {mhz}
flags : fpu sse2 {flags}

processor : 1
"""


def test_ops_are_built_for_one_kind_of_cpu(tmp_path):
    def folder(name: str, mhz: int, flags: str) -> Path:
        file = tmp_path / name
        file.write_text(CPUINFO.format(mhz=mhz, flags=flags))
        return ops_folder("/venv", ALL, "cpu", file)

    plain = folder("plain", 2000, "avx2")
    assert folder("faster at the moment", 3000, "avx2") == plain
    assert folder("newer", 2000, "avx2 avx512f") != plain, "its instructions would kill a rank on the other"


def test_ops_for_cuda_are_built_for_the_visible_gpus():
    def folder(*capabilities: tuple[int, int], **variables: str) -> Path:
        gpus = FakeNvml(*(FakeGpu(uuid=f"GPU-{i}", capability=each) for i, each in enumerate(capabilities)))
        return ops_folder("/venv", ALL, "cuda", gpus=find_visible_gpus(gpus, variables))

    hopper, ampere = (9, 0), (8, 0)
    assert folder(hopper, hopper) == folder(hopper)
    assert folder(ampere) != folder(hopper), "a GPU has no kernel that was built for another"
    assert folder(ampere, hopper) == folder(hopper, ampere) != folder(hopper)
    assert folder(ampere, hopper, CUDA_VISIBLE_DEVICES="GPU-1") == folder(hopper)


def test_more_ranks_than_gpus_name_the_world_size(suite):
    (mistake,) = refusal(suite(MINIMAL.replace("8", "16").replace("[1, 2]", "[16]")), GPUS)
    assert mistake == "mine.yaml:4: world_sizes[0] = 16: 16 ranks need 16 GPUs, but this machine has 8"


def test_a_glob_that_matches_no_strategy_is_a_mistake(suite):
    (mistake,) = refusal(suite(MINIMAL + "exclude: [{strategy: dpp}]\n"))
    assert mistake == "mine.yaml:5: exclude[0].strategy = 'dpp': matches no strategy; labels: ddp"


def test_tolerances_of_no_strategy_are_a_mistake(suite):
    gate = "gate: {strategies: {%s: {tokens_per_s: 5%%}}}\n"
    (mistake,) = refusal(suite(MINIMAL + gate % "dpp*"))
    assert mistake.startswith("mine.yaml:5: gate.strategies.dpp*")
    assert mistake.endswith("matches no case; labels: ddp")
    for glob in ("dd*", '"*/ws64/*"'):
        assert make_plan(suite(MINIMAL + gate % glob), CPU).cases


def test_a_suite_that_excludes_all_is_a_mistake(suite):
    assert "no cases left" in refusal(suite(MINIMAL + "exclude: [{strategy: ddp}]\n"))[0]


def test_far_too_many_cases_are_refused_at_once(suite):
    text = MINIMAL + f"seed: {list(range(1000))}\nthreads: {list(range(1, 1000))}\n"
    assert "more than 100,000" in refusal(suite(text))[0]


def test_ten_thousand_cases_have_an_id_each(suite):
    text = MINIMAL.replace("[1, 2]", "[1]") + f"seed: {list(range(1000))}\n"
    text += "optimizer: {lr: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}\n"
    assert len({item.case.id for item in make_plan(suite(text), CPU).cases}) == 10_000


PAIRED = '''
"""``paired``: a strategy of one's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.engine import Engine


@dataclass(frozen=True)
class Paired(Strategy):
    """Ranks in pairs."""

    engine_class: ClassVar[str] = "Pair"

    swaps: int = 1
    """Times that a pair swaps places."""

    @property
    def label(self) -> str:
        return f"paired{self.swaps}"

    def world_sizes(self, asked):
        return [size for size in asked if size % 2 == 0]

    def build(self, setting: RankContext) -> Engine:
        raise NotImplementedError
'''


def test_a_strategy_is_added_by_one_file(suite, tmp_path, monkeypatch):
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "paired.py").write_text(PAIRED)
    monkeypatch.setenv("DISTBENCH_PLUGINS", str(tmp_path))
    plan = make_plan(suite(MINIMAL.replace("[ddp]", "[ddp, {paired: {swaps: [1, 2]}}]")), CPU)
    assert names(plan)[1:] == ["ddp/ws2/mb4/fp32", "paired1/ws2/mb4/fp32", "paired2/ws2/mb4/fp32"]


def test_checkpoints_are_exchanged_with_one_reference_only(suite):
    text = MINIMAL.replace("[ddp]", "[ddp, fsdp, single]") + "checkpoint: true\nmeasure: {trials: 0}\n"
    plan = make_plan(suite(text), CPU)
    tasks = [(task.job.options.role, task.case.label, task.round) for task in plan.trials]
    own = [("case", "single", 0)] + [("case", label, 0) for label in ("ddp", "fsdp") for _ in range(2)]
    back = [("back", "single", number) for number in range(1, 5)]
    assert sorted(tasks) == sorted([*own, *back])
    assert tasks[0] == own[0], "what the others read comes first"
    left = [task.output_file for task in plan.trials]
    assert all(left.index(task.input_file) < i for i, task in enumerate(plan.trials) if task.input_file)
    assert len({task.key for task in plan.trials}) == len(plan.trials)


def test_checkpoints_are_exchanged_within_the_same_work_only(suite):
    text = MINIMAL + "precision: [fp32, bf16]\ncheckpoint: true\nmeasure: {trials: 0}\n"
    plan = make_plan(suite(text), CPU)
    by_id = {task.case.id: task.case for task in plan.trials}
    exchanged = [task for task in plan.trials if task.job.options.source_id]
    assert len(exchanged) == 4
    for task in exchanged:
        assert by_id[task.job.options.source_id].precision == task.case.precision


def test_a_reference_that_does_not_fit_has_stand_ins_that_do_the_same_work(suite):
    text = "batch: {global_batch_size: 12, micro_batch_size: 3}\nworld_sizes: [1, 2, 4]\ncheck: true\n"
    text += "launcher: {local: {oversubscribe: true}}\n"
    plan = make_plan(suite("workload: transformer\nstrategies: [ddp]\n" + text), CPU)
    first = plan.trials[0]
    found = [(case.strategy.name, case.world_size, case.batch) for case in (first.case, *first.fallbacks)]
    assert found == [
        ("single", 1, Batch(12, 12, 1)),
        ("single", 1, Batch(12, 3, 4)),
        ("fsdp", 2, Batch(12, 3, 2)),
        ("fsdp", 4, Batch(12, 3, 1)),
    ]
    assert all(task.depends_on == first.case.id for task in plan.trials[1:4])
    assert [task.case.optimizer.name for task in plan.trials[:9]] == ["adamw"] * 4 + ["sgd"] * 4 + ["adamw"]


def test_a_stand_in_that_can_not_run_here_is_left_out(suite):
    text = "batch: {global_batch_size: 8}\nworld_sizes: [1, 2]\ncheck: true\noptimizer: sgd\n"
    plan = make_plan(suite("workload: transformer\nstrategies: [ddp]\n" + text), CPU)
    # FSDP2 has no fused SGD
    assert [case.strategy.name for case in plan.trials[0].fallbacks] == ["single"]


LARGE = SuiteText("""\
workload: {transformer: {preset: 1b, seq_len: 128}}
batch: {global_batch_size: 8}
strategies: [{zero: {stage: 3}}]
world_sizes: [2]
threads: 1
""")


def limits(suite: Suite) -> TimeLimits:
    (own,) = set(all_trial_limits(suite.limits, make_plan(suite, CPU).trials, suite.measure))
    return own


def test_limits_that_a_suite_leaves_open_follow_the_size_of_the_case(suite):
    assert limits(suite(MINIMAL, world_sizes=[2])) == TimeLimits()
    large = limits(suite(LARGE))
    # 6 operations a parameter and token of 1.24e9 and 1,024, at 4e10 a second and core
    assert large.step > 10 * 6 * 1.24e9 * 1024 / 2 / 4e10
    assert large.trial > 17 * large.step
    assert large.start == TimeLimits().start
    larger = limits(suite(LARGE.replace("1b", "70b")))
    assert larger.step > 10 * large.step
    assert larger.build > TimeLimits().build
    assert larger.trial < float("inf")


@pytest.mark.parametrize(
    ("section", "kind", "steps"),
    [
        # 30 steps, and 3 evaluations of 20 samples in batches of 8
        ("{targets: {bits_per_byte: 3}, max_steps: 30, eval_every: 10, eval_samples: 20}", "converge", 39),
        ("{steps_before: 2, steps_after: 5}", "checkpoint", 22),
    ],
)
def test_the_limit_of_a_trial_follows_the_steps_of_its_job(suite, section, kind, steps):
    asked = suite(f"{LARGE}data: text\n{kind}: {section}\n")
    trials = make_plan(asked, CPU).trials
    own = zip(trials, all_trial_limits(asked.limits, trials, asked.measure), strict=True)
    found = {task.job.kind: each for task, each in own if task.case.label == "zero3"}[kind]
    assert found.trial == found.start + found.build + steps * found.step


@pytest.mark.parametrize(("device", "profiled"), [("cpu", 3), ("cuda", 4)])
def test_the_profiled_step_that_warms_up_has_time_where_there_is_one(suite, device, profiled):
    asked = suite(LARGE + "measure: {warmup: 1, steps: 10, profile_steps: 3, check_steps: 1}\n")
    case = replace(make_plan(asked, CPU).cases[0].case, device=device)
    assert (
        job_kind("measure").sequential_steps(PlannedTrial(case), asked.measure) == 1 + 10 + 1 + profiled + 1
    )
    none = replace(asked.measure, profile_steps=0)
    assert job_kind("measure").sequential_steps(PlannedTrial(case), none) == 1 + 10 + 1 + 1


@pytest.mark.parametrize(
    ("given", "seconds"), [("", 120), ("limits: {start: 400}", 400), ("limits: {start: 5}", 120)]
)
def test_a_warm_parent_has_as_long_to_import_as_ranks_to_join(suite, tmp_path, given, seconds):
    asked = suite(f"{LARGE}{given}\n")
    task = make_plan(asked, CPU).trials[0]
    launch = trial_launch(tmp_path, asked, task, trial_limits(asked.limits, task, asked.measure))
    assert registry.create_plugin("launchers", PluginChoice("local")).import_limit_s(launch) == seconds
    sooner = PluginChoice("local", {"start_timeout": 3.0})
    assert registry.create_plugin("launchers", sooner).import_limit_s(launch) == 3


def test_measuring_and_checking_a_case_share_one_warm_parent(suite, tmp_path):
    asked = suite(LARGE + "check: true\n")
    # a check also trains the reference, which is single
    tasks = [task for task in make_plan(asked, CPU).trials if task.case.strategy.name == "zero"]
    launches = [trial_launch(tmp_path, asked, task, TimeLimits()) for task in tasks]
    assert {task.job.kind for task in tasks} == {"measure", "check"}
    assert len({(*launch.imports, *sorted(launch.environment.items())) for launch in launches}) == 1


def test_a_limit_that_a_suite_sets_stays_as_it_is(suite):
    asked = suite(LARGE + "limits: {step: 7, trial: 50}\n")
    assert (limits(asked).step, limits(asked).trial) == (7, 50)
    assert limits(asked).build == limits(suite(LARGE)).build


def test_only_weights_that_a_constructor_draws_make_preparing_long(suite):
    drawn, exact = suite(LARGE), suite(LARGE + "initial_weights: exact\n")
    seconds = [
        prepare_limit(s.limits, [item.case for item in make_plan(s, CPU).cases]) for s in (drawn, exact)
    ]
    assert seconds[0] == TimeLimits().prepare
    assert seconds[1] > seconds[0] + 300
    assert prepare_limit(SuiteLimits(prepare=3), [item.case for item in make_plan(exact, CPU).cases]) == 3


@pytest.mark.train
def test_the_limits_that_follow_the_size_are_shown(suite, distbench):
    # with Adam's states it would not fit everywhere
    alone = LARGE.replace("[2]", "[1]").replace("{zero: {stage: 3}}", "single")
    file = suite(f"{alone}optimizer: sgd\n").file
    text = " ".join(distbench("plan", file).stdout.split())
    assert "start 2 min 00 s, build 10 min 18 s, step " in text
    shown = json.loads(distbench("plan", file, "--json").stdout)
    assert {trial["limits"]["start"] for trial in shown["trials"]} == {120}
    assert sum(trial["limits"]["trial"] for trial in shown["trials"]) < shown["at_most_s"] < float("inf")


# options that change nothing beside the others would plan one training under several names
UNUSED = {
    "{fsdp: {replicas: 4}}": "replicas = 4 has no effect without sharding: hybrid; remove it",
    "{fsdp: {shards: 2}}": "shards = 2 has no effect without sharding: hybrid; remove it",
    "{fsdp: {sharding: hybrid, replicas: 4, shards: 2}}": "replicas = 4 has no effect without shards: null",
    "{fsdp: {version: 1, reshard_root: true}}": "reshard_root = true has no effect without version: 2",
    "{fsdp: {version: 1, layers_per_unit: 2}}": "layers_per_unit = 2 has no effect without version: 2",
    "{fsdp: {version: 1, forward_prefetch: 1}}": "forward_prefetch = 1 has no effect without version: 2",
    "{fsdp: {sharding: grad_op, backward_prefetch: 1}}": "backward_prefetch = 1 has no effect without",
    "{zero: {stage: 0, reduce_bucket_size: 5}}": "reduce_bucket_size = 5 has no effect without stage",
    "{zero: {stage: 3, allgather_bucket_size: 5}}": "allgather_bucket_size = 5 has no effect without",
    "{zero: {stage: 1, max_live_parameters: 5}}": "max_live_parameters = 5 has no effect without stage: 3",
    "{zero: {stage: 2, param_persistence_threshold: 9}}": "param_persistence_threshold = 9 has no effect",
    "{zero: {stage: 2, sub_group_size: 9}}": "sub_group_size = 9 has no effect without stage: 3",
    "{zero: {stage: 3, round_robin_gradients: true}}": "round_robin_gradients = true has no effect",
    "{zero: {stage: 0, contiguous_gradients: false}}": "contiguous_gradients = false has no effect without",
    "{zero: {stage: 2, contiguous_gradients: false, offload_optimizer: cpu}}": "without offload_optimizer",
    "{zero: {stage: 1, prescale_gradients: true}}": "prescale_gradients = true has no effect without",
    "{zero: {stage: 0, prescale_gradients: true, gradient_predivide_factor: 2}}": "prescale_gradients: false",
    "{zero: {stage: 2, pin_memory: false}}": "pin_memory = false has no effect without offload_optimizer or",
    "{zero: {aio: {queue_depth: 8}}}": "has no effect without offload to nvme",
    "{zero: {stage: 1, nvme_path: /x}}": "nvme_path = '/x' has no effect without offload to nvme",
}


@pytest.mark.parametrize(("strategy", "why"), UNUSED.items())
def test_an_option_without_effect_is_no_case_of_its_own(suite, strategy, why):
    plan = make_plan(suite(MINIMAL.replace("[ddp]", f"[{strategy}]"), world_sizes=[2]), CPU)
    (item,) = plan.cases
    assert why in item.problem


def test_units_have_at_most_the_layers_of_the_model(suite):
    text = MINIMAL.replace("[ddp]", "[fsdp: {layers_per_unit: [1, 3, 100], forward_prefetch: [0, 99]}]")
    told = [item.problem for item in make_plan(suite(text, world_sizes=[2]), CPU).cases]
    assert told[0] is None
    assert "forward_prefetch = 99, but there are" in told[1]
    assert "layers_per_unit = 100, but the model has" in told[-1]


@pytest.mark.parametrize(
    "strategy",
    [
        "{fsdp: {layers_per_unit: 2}}",
        "{fsdp: {sharding: hybrid, shards: 1}}",
        "{fsdp: {reshard_root: true}}",
        "{zero: {stage: 1, reduce_bucket_size: 5, allgather_bucket_size: 5}}",
        "{zero: {stage: 3, reduce_bucket_size: 5, max_live_parameters: 5, prefetch_bucket_size: 5}}",
        "{zero: {stage: 2, param_persistence_threshold: 0, max_reuse_distance: 0}}",
        "{zero: {stage: 2, round_robin_gradients: true, offload_optimizer: cpu, pin_memory: false}}",
        "{zero: {stage: 1, contiguous_gradients: false}}",
        "{zero: {stage: 0, gradient_predivide_factor: 2}}",
    ],
)
def test_an_option_with_an_effect_is_planned(suite, strategy):
    plan = make_plan(suite(MINIMAL.replace("[ddp]", f"[{strategy}]"), world_sizes=[2]), CPU)
    (item,) = plan.cases
    assert item.problem is None

"""The mesh that a suite asks for: sizes that are swept, every mesh that fits, and what is refused."""

from pathlib import Path

import pytest

from distbench import plan
from distbench.analysis.choice import Requirements, select_case
from distbench.analysis.run import RunAnalysis
from distbench.core import registry
from distbench.core.case import Case
from distbench.core.errors import SuiteError
from distbench.core.machine import Machine
from distbench.core.meshes import DATA_DIMENSIONS
from distbench.metrics.base import TrialData
from distbench.metrics.utilisation import Utilisation
from distbench.strategies.fsdp import FullyShardedDataParallel
from distbench.suite import load_suite
from distbench.suite.overrides import Overrides
from distbench.workloads.base import Workload
from support.records import info, measured
from support.suites import SuiteText, write_suite
from support.theory_checks import assert_same_training

MACHINE = Machine("cpu", 8, {"torch": "9", "deepspeed": "9"}, has_libaio=False, has_compiler=True)
MODEL = SuiteText(
    "{transformer: {dim: 64, depth: 2, heads: 4, kv_heads: 4, ffn_dim: 128, vocab_size: 256, seq_len: 32}}"
)


def planned(
    folder: Path, strategies: str, *world_sizes: int, batch: int | str = 8, more: str = ""
) -> dict[str, str]:
    """Why a case can't run, by its label and world size; empty if it can."""
    found = planned_cases(folder, strategies, *world_sizes, batch=batch, more=more)
    return {f"{item.case.label}/{item.case.world_size}": item.problem or "" for item in found}


def planned_cases(
    folder: Path, strategies: str, *world_sizes: int, batch: int | str = 8, more: str = ""
) -> list[plan.PlannedCase]:
    suite = folder / "suite.yaml"
    sizes = batch if isinstance(batch, str) else f"{{global_batch_size: {batch}}}"
    text = f"workload: {MODEL}\nbatch: {sizes}\nworld_sizes: {list(world_sizes)}\n"
    suite.write_text(f"{text}{more}strategies: [{strategies}]\n")
    return plan.make_plan(load_suite(suite), MACHINE).cases


def test_auto_makes_a_case_of_every_mesh_that_fits(tmp_path):
    found = planned(tmp_path, "fsdp: {mesh: auto}", 1, 2, 4, 8)
    assert list(found) == [
        *("fsdp/1", "fsdp/2"),
        *("fsdp/4", "fsdp-hybrid2/4", "fsdp+tp2/4"),
        # heads = 4, so that none is cut over 8
        *("fsdp/8", "fsdp-hybrid2/8", "fsdp-hybrid4/8", "fsdp+tp2/8", "fsdp+tp4/8", "fsdp-hybrid2+tp2/8"),
    ]
    assert not any(found.values())


def test_a_pipeline_stands_in_every_mesh_that_fits(tmp_path):
    found = planned(tmp_path, "pp: {mesh: auto, micro_batches: 2, schedule: GPipe}", 2, 4, 8)
    assert list(found) == [
        *("pp-gpipe/2", "pp-gpipe+tp2/4", "pp-gpipe+fsdp2/4", "pp-gpipe+ddp2/4"),
        # depth = 2, so that there are no more than two stages
        *("pp-gpipe+tp4/8", "pp-gpipe+fsdp4/8", "pp-gpipe+ddp4/8"),
        *("pp-gpipe+fsdp2+tp2/8", "pp-gpipe+hsdp2x2/8"),
    ]
    assert not any(found.values())


@pytest.mark.parametrize(
    ("strategies", "labels"),
    [
        ("cp: {mesh: auto}", ["cp/2", "cp/4", "cp2+ddp/4", "cp2+ddp/8", "cp4+ddp/8"]),
        ("cp: {mesh: auto, implementation: ring}", ["cp-ring/2", "cp-ring/4", "cp2-ring+ddp/4", "cp-ring/8"]),
        ("cp: {mesh: auto}, cp: {mesh: {cp: 2}}", ["cp/2", "cp2+ddp/2", "cp/4", "cp2+ddp/4"]),
    ],
)
def test_sequences_are_shared_by_every_number_of_ranks_that_fits(strategies, labels, tmp_path):
    found = planned(tmp_path, strategies, 2, 4, 8)
    assert [*found][: len(labels)] == labels
    assert not any(found.values())


def test_experts_are_spread_over_every_number_of_ranks_that_fits(tmp_path):
    suite = write_suite(
        tmp_path,
        f"workload: {MODEL.replace('seq_len', 'experts: 4, seq_len')}\nbatch: {{global_batch_size: 8}}\n"
        "world_sizes: [1, 4, 8]\nstrategies: [{ep: {mesh: auto}}]\n",
    )
    cases = [item.case for item in plan.make_plan(load_suite(suite), MACHINE).cases]
    # 4 experts can't be divided by 8
    assert [f"{each.label}/{each.world_size}" for each in cases] == [
        *("ep/1", "ep/4", "ep2/4", "ep2/8", "ep4/8")
    ]


def test_a_batch_that_a_mesh_can_not_divide_is_no_mistake_where_all_are_asked_for(tmp_path):
    assert list(planned(tmp_path, "fsdp: {mesh: auto}", 8, batch=2)) == ["fsdp+tp4/8"]


def test_where_no_mesh_fits_one_stays_and_says_why(tmp_path):
    (item,) = planned(tmp_path, "fsdp: {mesh: auto}", 8, batch=3).items()
    assert item == ("fsdp/8", "batch.global_batch_size = 3 is not divisible by world size 8; use 8")


@pytest.mark.parametrize(
    ("strategies", "batch", "problems"),
    [
        (
            "fsdp: {mesh: {tp: [1, 2, 4]}}",
            "{global_batch_size: 1}",
            {
                "fsdp/4": "global_batch_size = 1 is not divisible by world size 4; use 4",
                "fsdp+tp2/4": "global_batch_size = 1 is not divisible by 2 data-parallel ranks; use 2",
                "fsdp+tp4/4": "",
            },
        ),
        (
            "pp: {mesh: {dp_shard: 2}}",
            "{global_batch_size: 7}",
            {"pp+fsdp2/4": "global_batch_size = 7 is not divisible by 2 data-parallel ranks; use 6 or 8"},
        ),
        (
            "cp: {mesh: {cp: 2}}",
            "{per_device_batch_size: 3, micro_batch_size: 4}",
            {
                "cp2+ddp/4": "per_device_batch_size = 3 x 2 devices per data-parallel rank is not "
                "divisible by micro_batch_size = 4; use 2 or 4"
            },
        ),
        (
            "ddp, tp",
            "{global_batch_size: 6}",
            {"ddp/4": "global_batch_size = 6 is not divisible by world size 4; use 4 or 8", "tp/4": ""},
        ),
    ],
)
def test_a_batch_that_others_can_divide_is_no_mistake_of_the_suite(strategies, batch, problems, tmp_path):
    found = planned(tmp_path, strategies, 4, batch=batch)
    assert {name: why.removeprefix("batch.") for name, why in found.items()} == problems


def test_a_mesh_that_was_asked_for_by_name_is_not_made_twice(tmp_path):
    found = planned(tmp_path, "fsdp: {mesh: {tp: 2}}, fsdp, fsdp: {mesh: auto}", 4)
    assert list(found) == ["fsdp+tp2/4", "fsdp/4", "fsdp-hybrid2/4"]


@pytest.mark.parametrize(
    ("mesh", "labels"),
    [
        ("{tp: [1, 2]}", ["fsdp/4", "fsdp+tp2/4"]),
        ("[{tp: 2}, {dp_replicate: 2}]", ["fsdp+tp2/4", "fsdp-hybrid2/4"]),
        (
            "{tp: [1, 2], dp_replicate: [1, 2]}",
            ["fsdp/4", "fsdp-hybrid2/4", "fsdp+tp2/4", "fsdp-hybrid2+tp2/4"],
        ),
        (
            "[auto, {dp_replicate: 2, dp_shard: 2}]",
            ["fsdp/4", "fsdp+tp2/4", "fsdp-hybrid2x2/4"],
        ),
    ],
)
def test_sizes_of_a_mesh_are_axes(mesh, labels, tmp_path):
    assert list(planned(tmp_path, f"fsdp: {{mesh: {mesh}}}", 4)) == labels


@pytest.mark.parametrize(
    ("strategies", "repeats"),
    [
        ("fsdp, fsdp: {mesh: {dp_shard: 4}}", 1),
        ("fsdp: {mesh: {dp_replicate: 2}}, fsdp: {sharding: hybrid}, fsdp: {sharding: hybrid, shards: 2}", 2),
        ("fsdp: {version: 1, sharding: hybrid}, fsdp: {version: 1, sharding: hybrid, shards: 2}", 1),
        ("zero: {stage: 2, offload_optimizer: cpu, pin_memory: [true, false]}", 1),
        ("pp: {mesh: {dp_shard: 2}}, pp: {mesh: {dp_shard: 2, pp: 2}}", 1),
        # a replica keeps its gathered parameters in one of them
        ("fsdp: {mesh: {dp_replicate: 2}, sharding: [full, grad_op]}", 0),
        ("fsdp: {version: [1, 2], sharding: hybrid}", 0),
        # two buckets in place of one
        ("zero: {stage: 1, overlap_comm: [true, false]}", 0),
    ],
)
def test_options_without_effect_do_not_plan_a_training_twice(strategies, repeats, tmp_path):
    cases = planned_cases(tmp_path, strategies, 4)
    refused = [item.problem for item in cases if item.problem]
    assert len(cases) > repeats
    assert len(refused) == repeats
    assert all(reason.startswith(f"it is the same training as {cases[0].case.name}") for reason in refused)


def test_of_cases_that_train_alike_the_chosen_one_is_trained(tmp_path):
    suite = write_suite(
        tmp_path,
        f"""
workload: {MODEL}
batch: {{global_batch_size: 8}}
world_sizes: [4]
strategies: [{{fsdp: {{mesh: {{dp_replicate: 2}}}}}}, {{fsdp: {{sharding: hybrid}}}}]
""",
    )
    second = [each for each in plan.make_plan(load_suite(suite), MACHINE).cases if each.problem]
    assert [each.case.label for each in second] == ["fsdp-hybrid"]
    only = plan.make_plan(load_suite(suite, Overrides(only=("fsdp-hybrid/*",))), MACHINE).cases
    assert [(each.case.label, each.problem) for each in only] == [("fsdp-hybrid", None)]


def test_a_dimension_of_one_rank_is_no_dimension(tmp_path):
    with pytest.raises(SuiteError, match=r"duplicates strategies\[0\]"):
        planned(tmp_path, "fsdp, fsdp: {mesh: {tp: 1, dp_replicate: 1}}", 4)


@pytest.mark.parametrize(
    ("strategy", "sizes", "ones"),
    [
        ("pp", "pp: 2, dp_shard: 2, tp: 2", "dp_replicate: 1, cp: 1, ep: 1"),
        ("fsdp", "dp_replicate: 2", "pp: 1, tp: 1, cp: [1]"),
        ("cp", "cp: 2", "pp: 1, dp_replicate: 1, dp_shard: 1, tp: 1, ep: 1"),
        ("ep", "ep: 2", "tp: 1"),
        ("zero", "tp: 2", "pp: 1, dp_shard: 1, cp: 1"),
    ],
)
def test_any_strategy_takes_a_dimension_of_one_rank_and_it_changes_nothing(strategy, sizes, ones, tmp_path):
    suite = tmp_path / "suite.yaml"
    text = f"workload: {MODEL}\nbatch: {{global_batch_size: 16}}\nworld_sizes: [8]\n"
    cases = []
    for mesh in (sizes, f"{ones}, {sizes}"):
        suite.write_text(f"{text}strategies: [{{{strategy}: {{mesh: {{{mesh}}}}}}}]\n")
        cases += [item.case for item in plan.make_plan(load_suite(suite), MACHINE).cases]
    plain, with_ones = cases
    assert (with_ones.id, with_ones.name) == (plain.id, plain.name)


def test_a_dimension_of_another_strategy_is_refused_with_those_that_have_it(tmp_path):
    with pytest.raises(SuiteError, match=r"tp = 2: expected cp; strategies that have tp: fsdp, pp, zero$"):
        planned(tmp_path, "cp: {mesh: {tp: 2}}", 4)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("mesh: {dp_replicate: 3}", "3 does not divide the world size, 8; dp_shard gets the rest; "),
        ("mesh: {dp_replicate: 3}", "mesh: {dp_replicate: 2} or {dp_replicate: 4} would fit"),
        ("mesh: {dp_shard: 2, tp: 2}", "2 x 2 = 4 is not the world size, 8; omit dp_shard"),
        ("mesh: {dp_shard: 2, tp: 2}", "mesh: {dp_shard: 2, tp: 4} or {dp_shard: 4, tp: 2} would fit"),
        ("mesh: {dp_replicate: 2}, sharding: hybrid", "remove sharding: hybrid"),
        ("mesh: {dp_replicate: 2}, version: 1", "set version: 2"),
    ],
)
def test_a_mesh_that_can_not_be_is_refused_with_what_would_fit(options, why, tmp_path):
    (problem,) = planned(tmp_path, f"fsdp: {{{options}}}", 8).values()
    assert why in problem


def test_globs_know_the_labels_of_meshes_that_nobody_wrote(tmp_path):
    more = 'exclude: [{strategy: "*tp*", world_size: 8}]\ninclude: [{strategy: "*+tp2", world_size: 2}]\n'
    found = planned(tmp_path, "fsdp: {mesh: auto}", 4, 8, more=more)
    assert [name for name in found if "tp" in name] == ["fsdp+tp2/4"]
    with pytest.raises(SuiteError, match=r"matches no strategy; labels: fsdp, fsdp-hybrid2, fsdp\+tp2"):
        planned(tmp_path, "fsdp: {mesh: auto}", 4, more='exclude: [{strategy: "*tp8*"}]\n')


@pytest.mark.train
@pytest.mark.deep
def test_every_mesh_is_the_same_training(run_suite):
    done = run_suite(f"""
workload: {MODEL}
batch: {{global_batch_size: 8}}
optimizer: {{clip_grad_norm: 0.1, weight_decay: 0.1}}
launcher: {{kept: {{oversubscribe: true}}}}
measure: {{trials: 0}}
check: {{steps: 3, perturbed: 4}}
world_sizes: [4]
strategies: [{{fsdp: {{mesh: auto, sharding: [full, grad_op]}}}}]
""")
    assert_same_training(done)
    hows = ("", "-hybrid2", "-grad-op-hybrid2", "-grad-op+tp2")
    assert {f"fsdp{how}" for how in hows} <= done.verdict_by_label.keys()


def parallel_cases(folder: Path) -> list[Case]:
    """The cases of the shipped suite of model parallelism on two devices."""
    suite = folder / "parallel.yaml"
    text = (Path(__file__).parents[3] / "suites/parallel.yaml").read_text()
    suite.write_text(text.replace("world_sizes: auto", "world_sizes: [2]"))
    return [item.case for item in plan.make_plan(load_suite(suite), MACHINE).cases if not item.problem]


def test_whatever_splits_the_model_is_less_simple_than_all_that_replicate_or_shard_it():
    split: list[int] = []
    whole: list[int] = []
    for strategy in registry.built_in_plugins("strategies").values():
        for variant in (*strategy.variants(), FullyShardedDataParallel(version=1, sharding="hybrid")):
            several = {name for name, size in variant.mesh_sizes(8).items() if size > 1}
            (split if several - set(DATA_DIMENSIONS) else whole).append(variant.simplicity)
    assert len(split) > 12
    assert len(whole) > 12
    assert max(whole) < min(split)


def test_what_cuts_the_model_is_picked_after_plain_sharding_if_it_is_as_fast(tmp_path):
    cases = parallel_cases(tmp_path)
    records = [measured(each, 1000.0 + round_, round_=round_) for each in cases for round_ in range(3)]
    run = RunAnalysis(info(*cases), records)
    simplicity = {one.label: one.simplicity for one in run.candidates}
    plain = {"single", "ddp", "fsdp", "zero2"}
    assert plain < simplicity.keys()
    assert {"tp", "fsdp+tp2+sp+lp", "pp"} < simplicity.keys()
    cut = [simplicity[label] for label in simplicity.keys() - plain]
    assert max(simplicity[label] for label in plain) < min(cut)
    pick, other = (
        select_case(run.candidates, Requirements(avoid=avoid)).pick for avoid in ((), tuple(plain))
    )
    assert pick and other
    assert pick.label == "ddp"
    assert simplicity[other.label] == min(cut)


def test_mfu_counts_the_same_work_whatever_the_mesh(tmp_path):
    cases = parallel_cases(tmp_path)
    workload: Workload = registry.create_plugin("workloads", cases[0].workload)
    flops = workload.flops_per_sample()
    assert flops
    summaries = [
        Utilisation().summary(
            TrialData(
                case=each,
                tokens_per_sample=128,
                flops_per_sample=flops,
                recomputed_flops_per_sample=None,
                samples={"step_s": [[2.0]] * 2, "peak_flops": [[1e9]] * 2},
                phases={},
            )
        )
        for each in cases
        if each.world_size == 2
    ]
    assert len(summaries) > 5
    assert {each["mfu"] for each in summaries} == {16 * flops / 2.0 / 2 / 1e9}

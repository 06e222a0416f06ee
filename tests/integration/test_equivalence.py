"""Whether a case is the same training: what must be found, and what must not be called different."""

import json
import re
import shutil
from typing import Any

import pytest

from distbench.jobs.equivalence.arms import DIFFERS, EQUIVALENT, NOT_CHECKED, ROUNDING
from support.runs import OF_OUR_OWN, Finished, call, run_in

SMALL = """
workload: {user: {model: "small:Small", length: 32}}
data: text
batch: {global_batch_size: 8, micro_batch_size: 2}
measure: {trials: 0}
"""

# what is planted -> where it must be found first
BUGS = {
    "summed": "gradient of",
    "one-rank-alone": "on rank 1, whose",
    "layer-left-out": "layers.0.up.bias",
    "same-samples": "loss",
    "unscaled-accumulation": "gradient of",
    "local-clipping": "parameters of",
    "weight-decay": "parameters of",
    "epsilon": "parameters of",
    "dropped-micro-batch": "gradient of",
    "norm-of-a-shard": "gradient norm",
}


def told(finished: Finished) -> dict[str, Any]:
    return {name: case["equivalence"] for name, case in finished.cases.items()}


@pytest.mark.parametrize(
    ("precision", "bugs"),
    [
        ("fp32", tuple(BUGS)),
        # the smallest of them, which the rounding of 16 bits hides first
        ("bf16", ("weight-decay", "epsilon", "local-clipping")),
        pytest.param("bf16", tuple(BUGS), marks=pytest.mark.deep),
    ],
    ids=["fp32", "bf16", "bf16-all"],
)
def test_every_planted_mistake_is_caught_where_it_is(precision, bugs, run_suite):
    suite = f"""{SMALL}
world_sizes: [2]
precision: {precision}
optimizer: {{clip_grad_norm: 0.5}}
check: {{steps: 4, perturbed: 6}}
strategies: [{{planted: {{bug: [none, keeps-its-state, {", ".join(bugs)}]}}}}]
"""
    done = run_suite(suite)
    verdict_of = {name.split("/")[0].removeprefix("planted-"): v for name, v in told(done).items()}
    assert verdict_of.pop("none")["verdict"] == ROUNDING
    secretive = verdict_of.pop("keeps-its-state")
    assert secretive["verdict"] == NOT_CHECKED
    assert {arm["reason"] for arm in secretive["arms"]} == {"this strategy can't gather its parameters"}
    assert {bug: v["verdict"] for bug, v in verdict_of.items()} == dict.fromkeys(bugs, DIFFERS)
    assert done.code == 1
    assert "Equivalence: differs in" in done.errors and f"planted-{bugs[0]}/ws2" in done.errors
    shown = " ".join(call("show", str(done.folder)).stdout.split())
    for bug in bugs:
        # mistakes that do the same are told in one sentence
        named = rf"planted-{bug}/ws2/mb2/{precision}(, planted-\S+)*: differs [^;]*?, first (?P<first>[^:]*):"
        told_of = re.search(named, shown)
        assert told_of, bug
        assert BUGS[bug] in told_of["first"], bug


# each engine in one precision, and stages of ZeRO; test_identity has fsdp and zero3 in bf16, the grid has all
HONEST = {
    "fp32": """
world_sizes: [2]
strategies:
  - ddp
  - fsdp: {sharding: grad_op}
  - zero: {stage: [0, 3]}
include:
  - {strategy: zero3, world_size: 4}
exclude:
  - {strategy: zero3, world_size: 2}
""",
    "bf16": """
world_sizes: [2]
precision: bf16
strategies: [{fsdp: {version: 1}}, {zero: {stage: 1}}]
""",
    "both": """
world_sizes: [1, 2]
axes: {precision: [fp32, bf16]}
strategies:
  - single
  - ddp
  - fsdp: {sharding: [full, grad_op]}
  - fsdp: {version: 1}
  - zero: {stage: [0, 1, 2, 3]}
  - zero: {stage: 2, offload_optimizer: cpu, optimizer_kernel: deepspeed}
include:
  - {strategy: "zero3", world_size: 4}
  - {strategy: "fsdp", world_size: 4}
exclude:
  - {strategy: "[!s]*", world_size: 1}
""",
}


@pytest.mark.parametrize(
    ("grid", "cases"),
    [("fp32", 4), ("bf16", 2), pytest.param("both", 21, marks=pytest.mark.deep)],
)
def test_honest_strategies_are_the_same_training(grid, cases, run_suite):
    suite = f"""{SMALL}{HONEST[grid]}
optimizer: {{clip_grad_norm: 0.5, weight_decay: 0.1}}
launcher: {{kept: {{oversubscribe: true}}}}
check: {{steps: 4, perturbed: 6}}
"""
    done = run_suite(suite)
    assert done.code == 0, done.errors
    words = {name: each["verdict"] for name, each in told(done).items()}
    assert len(words) >= cases
    assert set(words.values()) <= {EQUIVALENT, ROUNDING}
    assert {word for name, word in words.items() if "zero" in name or "fsdp1" in name} == {ROUNDING}
    kernel = [arm["notes"] for name, e in told(done).items() if "ds-adam" in name for arm in e["arms"]]
    assert any("DeepSpeedCPUAdam" in note for notes in kernel for note in notes) == (grid == "both")


def test_a_reference_that_breaks_down_is_not_trained_any_further(run_suite):
    suite = f"""{SMALL}
world_sizes: [2]
optimizer: {{name: sgd, lr: 2.0e+9}}
check: {{steps: 6}}
strategies: [ddp]
"""
    done = run_suite(suite)
    reference = done.read(next(done.folder.glob("checks/reference-*/0/record.json")))
    assert reference["status"] == "invalid_nan"
    assert {row["training"] for row in reference["tables"]["check_curve"]} == {"fp64"}
    verdict = told(done)["ddp/ws2/mb2/fp32"]
    assert verdict["verdict"] == NOT_CHECKED
    assert "the loss of the training 'fp64' of rank 0 was nan" in verdict["arms"][0]["reason"]


TUNED = """
strategies:
  - zero: {stage: 0, prescale_gradients: true, label: prescaled}
  - zero: {stage: 0, gradient_predivide_factor: 4, label: predivided}
  - zero: {stage: 2, round_robin_gradients: true, label: dealt}
  - zero: {stage: 2, round_robin_gradients: true, offload_optimizer: cpu, label: dealt-offload}
  - zero: {stage: 2, contiguous_gradients: false, label: scattered}
  - zero: {stage: 3, contiguous_gradients: false, sub_group_size: 500, label: in-parts}
"""


@pytest.mark.deep
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_people_tune_of_zero_is_the_same_training(precision, run_suite):
    check = "optimizer: {clip_grad_norm: 0.5}\nworld_sizes: [2]\ncheck: {steps: 3, perturbed: 6}\n"
    done = run_suite(f"{SMALL}{TUNED}precision: {precision}\n{check}")
    assert done.code == 0, done.errors
    words = {name.split("/")[0]: each["verdict"] for name, each in told(done).items()}
    assert set(words) == {"prescaled", "predivided", "dealt", "dealt-offload", "scattered", "in-parts"}
    assert set(words.values()) <= {EQUIVALENT, ROUNDING}


@pytest.mark.parametrize("fp64", ["false", pytest.param("true", marks=pytest.mark.deep)])
def test_a_norm_that_torch_adds_up_badly_blames_no_strategy_that_adds_it_up_in_parts(fp64, run_suite):
    """On a CPU the norm of the whole is off by more than that of its shards; gradients are clipped by it."""
    suite = """
workload: {user: {model: "odd:Wide", loss_function: "odd:half_of_squares", length: 16}}
batch: {global_batch_size: 2, micro_batch_size: 1}
optimizer: {name: sgd, kernel: foreach, lr: 1.0, clip_grad_norm: 1.0}
world_sizes: [2]
strategies: [fsdp]
measure: {trials: 0}
check: {steps: 3, perturbed: 4}
"""
    done = run_suite(suite, "--set", f"check.fp64={fp64}")
    assert done.code == 0, done.errors
    (found,) = told(done).values()
    assert found["verdict"] == ROUNDING
    (arm,) = found["arms"]
    (moved,) = (worst for worst in arm["worst"] if worst["place"][1] == "parameter")
    assert moved["error"] > 1e-6


ODD = """
batch: {global_batch_size: 8, micro_batch_size: 4}
data: text
world_sizes: [2]
measure: {trials: 0}
check: {steps: 3, perturbed: 4}
"""


COMPARED = {
    "Tied": "ddp",
    "Frozen": "zero3",
    "ShapesFromData": "zero3",
    "TooLargeForOne": "ddp",
    "TooLargeAtOnce": "ddp",
}
"""Model that is compared all the same -> strategy that trains it; the grid has each by both."""
# nothing is asked about these
NOT_LOOKED_AT = """
exclude:
  - {strategy: ddp, workload.user.model: [odd:Frozen, odd:ShapesFromData]}
  - {strategy: zero3, workload.user.model: [odd:Tied, odd:TooLargeForOne, odd:TooLargeAtOnce]}
  - {strategy: zero3, workload.user.model: [odd:Unused, odd:Dropout, odd:BatchNorm, odd:NotAMeanForOne]}
  - {strategy: zero3, workload.user.model: small:NotANumber}
  - {strategy: zero3, workload.user.model: [odd:FailsInFp64, odd:FailsInFp64ForTwo, odd:MaskOfNumbers]}
  - {strategy: ddp, workload.user.model: odd:DrawsInForward}
"""


@pytest.fixture(scope="module", params=["pairs", pytest.param("all", marks=pytest.mark.deep)])
def odd(request, tmp_path_factory) -> dict[str, Any]:
    """Verdicts on models whose training is hard to compare, by model and strategy."""
    models = (
        "Tied Frozen Unused Dropout DrawsInForward BatchNorm ShapesFromData TooLargeForOne TooLargeAtOnce "
        "NotAMeanForOne FailsInFp64 FailsInFp64ForTwo MaskOfNumbers"
    )
    named = ", ".join(f"odd:{name}" for name in models.split())
    suite = f"""{ODD}
workload: {{user: {{model: odd:Tied, length: 32}}}}
axes: {{workload.user.model: [{named}, small:NotANumber]}}
strategies: [ddp, {{zero: {{stage: 3}}}}]
{NOT_LOOKED_AT if request.param == "pairs" else ""}
"""
    done = run_in(tmp_path_factory.mktemp("odd"), suite)
    assert len(told(done)) == {"pairs": 14, "all": 28}[request.param]
    return {name.partition("model=")[2] + " " + name.split("/")[0]: v for name, v in told(done).items()}


@pytest.mark.parametrize("model", COMPARED)
def test_an_odd_model_is_compared_all_the_same(model, odd):
    words = {
        name.split()[1]: each["verdict"] for name, each in odd.items() if name.startswith(f"odd:{model} ")
    }
    assert COMPARED[model] in words
    assert set(words.values()) <= {EQUIVALENT, ROUNDING}


def test_rounding_leaves_a_mask_of_numbers_as_it_is(odd):
    """If it did not, what is masked would be seen, and no mistake told from such rounding."""
    found = odd["odd:MaskOfNumbers ddp"]
    assert found["verdict"] in (EQUIVALENT, ROUNDING)
    seen = [sight["typical"] for arm in found["arms"] for sight in arm["sights"]]
    assert len(seen) >= 4
    assert max(seen) < 0.01


@pytest.mark.parametrize(
    ("model", "reference"),
    [("FailsInFp64", "reference/single/ws1/"), ("FailsInFp64ForTwo", "reference/fsdp/ws2/")],
)
def test_a_model_that_fails_in_fp64_is_checked_without_it(model, reference, odd):
    found = odd[f"odd:{model} ddp"]
    assert all(arm["reference"].startswith(reference) for arm in found["arms"])
    assert found["verdict"] in (EQUIVALENT, ROUNDING)
    assert len(found["arms"]) == 2
    for arm in found["arms"]:
        (note,) = [note for note in arm["notes"] if "fp64" in note]
        assert note.startswith(
            "the fp64 training was skipped, so bounds are wider: the model fails in it (Runt"
        )


def test_a_model_that_computes_something_else_in_16_bits_is_what_is_wrong(run_suite):
    suite = f"""{ODD.replace("trials: 0", "trials: 1, warmup: 1, steps: 2, profile_steps: 0")}
workload: {{user: {{model: "odd:DriftsIn16Bits", length: 32}}}}
precision: bf16
strategies: [fsdp]
"""
    done = run_suite(suite, "--set", "check.fp32=false")
    (found,) = told(done).values()
    assert found["verdict"] == NOT_CHECKED
    assert all("its reference is broken" in arm["reason"] for arm in found["arms"])
    # nobody is told to differ from it either
    (case,) = done.cases.values()
    assert (case["status"], done.code) == ("measured", 3), done.errors


def test_a_model_with_dropout_is_checked_without_it(odd):
    found = odd["odd:Dropout ddp"]
    assert found["verdict"] in (EQUIVALENT, ROUNDING)
    assert {arm["without_dropout"] for arm in found["arms"]} == {"drop, p = 0.1"}


def test_a_reference_that_does_not_fit_is_replaced_by_the_smallest_that_does(odd):
    def held_against(model: str) -> set[str]:
        return {arm["reference"] for arm in odd[f"odd:{model} ddp"]["arms"]}

    assert held_against("Tied") == {
        "reference/single/ws1/mb8/fp32/adamw",
        "reference/single/ws1/mb8/fp32/sgd",
    }
    assert all(name.startswith("reference/single/ws1/mb4/") for name in held_against("TooLargeAtOnce"))
    assert all(name.startswith("reference/fsdp/ws2/mb4/") for name in held_against("TooLargeForOne"))


def test_the_ranks_of_a_reference_decide_alike_what_only_one_of_them_sees(odd):
    arms = odd["odd:NotAMeanForOne ddp"]["arms"]
    assert arms and all("not the mean" in " ".join([arm["cause"] or "", *arm["notes"]]) for arm in arms)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("odd:DrawsInForward zero3", "the model draws random numbers during training"),
        ("odd:Unused ddp", "find_unused_parameters"),
        (
            "small:NotANumber ddp",
            "its reference has no result: the loss of the training '",
        ),
    ],
)
def test_what_can_not_be_checked_says_why(name, reason, odd):
    assert odd[name]["verdict"] == NOT_CHECKED
    assert all(reason in arm["reason"] for arm in odd[name]["arms"])


def test_a_loss_that_is_no_mean_over_the_batch_is_told_as_the_cause(odd, run_suite):
    masked = f"""{ODD}
workload: {{user: {{model: "small:Small", loss_function: "odd:over_letters", length: 32}}}}
strategies: [ddp]
"""
    norm, (mask,) = odd["odd:BatchNorm ddp"], told(run_suite(masked)).values()
    for found in (norm, mask):
        assert found["verdict"] == DIFFERS
        assert all("is not the mean of the losses of its parts" in arm["cause"] for arm in found["arms"])
    statistics = "batch norm in norm computes its statistics from the rows of one rank"
    assert all(statistics in arm["cause"] for arm in norm["arms"])
    assert all("batch_norm: per_rank" in arm["advice"] for arm in norm["arms"])
    assert all("return total, count" in arm["advice"] for arm in mask["arms"])


def test_an_event_of_one_training_alone_blames_no_case(run_suite):
    done = run_suite(f"""{SMALL}
world_sizes: [2]
check: {{steps: 3, perturbed: 4, fp64: false}}
strategies: [{{planted: {{bug: [rare-event, summed]}}}}]
""")
    rare, wrong = (told(done)[f"planted-{bug}/ws2/mb2/fp32"] for bug in ("rare-event", "summed"))
    assert (rare["verdict"], wrong["verdict"]) == (NOT_CHECKED, DIFFERS)
    (reason,) = {arm["reason"] for arm in rare["arms"] if arm["optimizer"] == "adamw"}
    assert re.fullmatch(
        r"one training of the case differs from step 0 on \(adamw\), first in gradient of embedding.weight: "
        r"relative error .*; a second one, from weights perturbed by rounding, does not differ: .*",
        reason,
    )
    records = [done.read(file) for file in done.folder.glob("checks/*/1/record.json")]
    assert {record["job"]["options"]["role"] for record in records} == {"confirmation"}
    # of the wrong one, one training is enough; of the other, each has one
    assert sorted(record["case"]["label"] for record in records) == [
        "planted-rare-event",
        "planted-rare-event",
        "planted-summed",
    ]


def test_a_check_goes_on_where_it_was_stopped(run_suite):
    done = run_suite(f"{SMALL}\nstrategies: [ddp]\nworld_sizes: [2]\ncheck: {{steps: 2, perturbed: 4}}")
    kept, lost = sorted(done.folder.glob("checks/ddp-*/0/record.json"))
    reference_file = next(done.folder.glob("checks/reference-*/0/record.json"))
    before = kept.stat().st_mtime_ns, reference_file.stat().st_mtime_ns
    shutil.rmtree(lost.parent)
    again = call("run", "--resume", str(done.folder), "--json")
    assert again.returncode == 0, again.stderr
    (row,) = json.loads(again.stdout)["cases"]
    assert row["equivalence"]["verdict"] in (EQUIVALENT, ROUNDING)
    assert (kept.stat().st_mtime_ns, reference_file.stat().st_mtime_ns) == before
    assert lost.is_file()


def test_a_run_that_was_measured_is_checked_later(run_suite):
    measured = SMALL.replace("trials: 0", "trials: 1")
    done = run_suite(f"{measured}\nstrategies: [ddp]\nworld_sizes: [2]")
    trial = next(done.folder.glob("trials/*/0/record.json"))
    before = trial.stat().st_mtime_ns
    added = ("--check", "--set", "check.steps=2", "--set", "check.perturbed=4")
    again = call("run", "--resume", str(done.folder), *added, "--json")
    assert again.returncode == 0, again.stderr
    (row,) = json.loads(again.stdout)["cases"]
    assert row["equivalence"]["verdict"] in (EQUIVALENT, ROUNDING)
    assert trial.stat().st_mtime_ns == before
    refused = call("run", "--resume", str(done.folder), "--check")
    assert refused.returncode == 2
    assert "was started with --check" in refused.stderr
    # cuBLAS has no deterministic mode without it, and another workspace is another speed
    files = list(done.folder.glob("*/*/0/record.json"))
    assert {file.parts[-4] for file in files} == {"checks", "trials"}
    for file in files:
        variables = Finished.read(file)["environment"]["variables"]
        asked = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if file.parts[-4] == "checks" else {}
        assert {name: variables[name] for name in variables if name.startswith("CUBLAS")} == asked, file


def test_a_plan_shows_what_is_checked(tmp_path):
    suite = tmp_path / "mine.yaml"
    small = SMALL.replace(*OF_OUR_OWN).replace("trials: 0", "trials: 1")
    suite.write_text(f"{small}\nstrategies: [single]\nworld_sizes: [1]")
    without, checked = call("plan", str(suite)).stdout, call("plan", str(suite), "--check").stdout
    assert "1 case, 1 trial " in without and "check trials" not in without
    assert "1 case, 1 trial " in checked and "4 check trials" in checked
    commands = call("plan", str(suite), "--check", "--commands").stdout
    assert "# reference/single/ws1/mb8/fp32/sgd" in commands

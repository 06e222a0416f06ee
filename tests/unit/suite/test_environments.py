"""Other Python environments as an axis of a suite: how they are named and asked, and what runs there."""

import dataclasses
import json
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from distbench.adopt import export_case
from distbench.analysis.communication import UNEXPLAINED_TOLERANCE, compare_volume
from distbench.analysis.memory import MODEL_STATE_TOLERANCE, largest_rank_memory
from distbench.analysis.mesh_dimensions import call_count_mismatches
from distbench.analysis.run import RunAnalysis
from distbench.analysis.wording.conditions import environment_sentences
from distbench.core.case import CURRENT_ENVIRONMENT, PluginChoice
from distbench.core.errors import SuiteError
from distbench.core.machine import Machine
from distbench.core.measurement import TimeLimits
from distbench.ipc.launch_spec import PythonTarget
from distbench.jobs.equivalence.arms import EQUIVALENT, ROUNDING
from distbench.launchers.base import LaunchError
from distbench.launchers.fork_server_client import ForkServerClient
from distbench.plan import Plan, make_plan
from distbench.plan.references import reference_case
from distbench.record import Record
from distbench.record.run_folder import Run
from distbench.report.header import header_facts
from distbench.run import trial_launch
from distbench.suite import Overrides, Suite, load_suite
from distbench.system.interpreters import REQUIRED_PACKAGES
from distbench.system.machine import ops_folder
from support.environments import beside, older_deepspeed
from support.records import case, measured, run_of
from support.suites import SuiteText, write_suite

NO_DEEPSPEED = Machine("cpu", 2, {"torch": "2.13.0"}, has_libaio=False, has_compiler=True)
FACTS = {
    "python": "3.11.4",
    "prefix": "/elsewhere",
    "packages": {"torch": "2.12.0", "deepspeed": "0.14.0"},
    "deepspeed": "/elsewhere/deepspeed",
    "missing": [],
}

SUITE = SuiteText("""\
workload: {transformer: {dim: 32, depth: 1, heads: 2, ffn_dim: 64, seq_len: 32}}
data: synthetic
batch: {global_batch_size: 4}
world_sizes: [2]
environments: {old: old}
strategies: [ddp, zero]
""")


def python(folder: Path, told: Mapping[str, object] | None = None, script: str = "") -> Path:
    """A virtual environment whose Python answers what it is asked with *told*, or is another *script*."""
    program = folder / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(script or f"#!/bin/sh\necho '{json.dumps({**FACTS, **(told or {})})}'\n")
    program.chmod(0o755)
    return program


def link_python(folder: Path, target: str) -> None:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(target)


@pytest.fixture
def suite(tmp_path) -> Callable[..., Suite]:
    def read(text: str, **overrides: object) -> Suite:
        file = write_suite(tmp_path, text, "mine.yaml")
        return load_suite(file, Overrides(**overrides))

    return read


def planned(plan: Plan) -> dict[str, str | None]:
    return {item.case.name: item.problem for item in plan.cases}


def refusal(read: Callable[[], object]) -> list[str]:
    with pytest.raises(SuiteError) as refused:
        read()
    return [str(mistake).rpartition("mine.yaml:")[2] for mistake in refused.value.mistakes]


def test_what_is_unsupported_here_runs_where_it_is_installed(suite, tmp_path):
    python(tmp_path / "old")
    plan = make_plan(suite(f"{SUITE}environment: [current, old]\n"), NO_DEEPSPEED)
    told = planned(plan)
    assert list(told) == [
        "ddp/ws2/mb2/fp32",
        "zero3/ws2/mb2/fp32",
        "ddp/ws2/mb2/fp32/@old",
        "zero3/ws2/mb2/fp32/@old",
    ]
    assert "deepspeed is not installed" in (told.pop("zero3/ws2/mb2/fp32") or "")
    assert not any(told.values())
    # rounds take them by turns, as other cases
    assert [task.case.name for task in plan.trials[:4]] == [*told, "zero3/ws2/mb2/fp32/@old"]


def test_its_processes_start_in_it_with_this_distbench_and_ops_of_its_own(suite, tmp_path):
    program = python(tmp_path / "old")
    mine = suite(f"{SUITE}environment: [current, old]\n")
    here, there = (
        trial_launch(
            tmp_path / "run",
            mine,
            next(task for task in make_plan(mine, NO_DEEPSPEED).trials if at in task.case.name),
            TimeLimits(),
        )
        for at in ("fp32", "@old")
    )
    assert (here.target.python, there.target.python) == (sys.executable, str(program))
    first = Path(there.target.environment["PYTHONPATH"].split(":")[0])
    assert [each.name for each in first.iterdir()] == ["distbench"]
    assert "torch-2.12.0-deepspeed-0.14.0" in there.target.environment["TORCH_EXTENSIONS_DIR"]
    assert not here.target.environment


def environment_with_op(folder: Path) -> Path:
    """A package of DeepSpeed that was installed with the op of collectives in shared memory."""
    op = folder / "ops" / "comm" / "deepspeed_shm_comm_op.so"
    op.parent.mkdir(parents=True)
    op.touch()
    return folder


def test_ops_that_can_not_be_built_are_looked_for_where_they_would_be_loaded(suite, tmp_path, monkeypatch):
    monkeypatch.setenv("DISTBENCH_CACHE", str(tmp_path / "cache"))
    shipped, bare, built = (str(tmp_path / name) for name in ("shipped", "bare", "built"))
    python(
        tmp_path / "shipped",
        {"prefix": shipped, "deepspeed": str(environment_with_op(tmp_path / "deepspeed"))},
    )
    python(tmp_path / "bare", {"prefix": bare})
    python(tmp_path / "built", {"prefix": built})
    library = ops_folder(built, FACTS["packages"], "cpu") / "deepspeed_shm_comm" / "deepspeed_shm_comm.so"
    library.parent.mkdir(parents=True)
    library.touch()
    text = SUITE.replace(
        "environments: {old: old}", "environments: {shipped: shipped, bare: bare, built: built}"
    )
    without = dataclasses.replace(NO_DEEPSPEED, has_compiler=False, has_ninja=True)
    told = planned(make_plan(suite(f"{text}environment: [shipped, bare, built]\n"), without))
    problems = {name.rpartition("@")[2]: problem for name, problem in told.items() if "zero" in name}
    assert "deepspeed_shm_comm must be built, but no C++ compiler was found" in (problems.pop("bare") or "")
    assert problems == {"shipped": None, "built": None}


def test_a_part_of_a_suite_runs_elsewhere_and_names_and_globs_tell_it(suite, tmp_path):
    python(tmp_path / "old")
    some = f"{SUITE}include: [{{strategy: 'zero*', environment: old}}]\n"
    assert list(planned(make_plan(suite(some), NO_DEEPSPEED)))[2:] == ["zero3/ws2/mb2/fp32/@old"]
    assert list(planned(make_plan(suite(some, only=["*@old"]), NO_DEEPSPEED))) == ["zero3/ws2/mb2/fp32/@old"]
    without = f"{SUITE}environment: [current, old]\nexclude: [{{strategy: ddp, environment: old}}]\n"
    assert "ddp/ws2/mb2/fp32/@old" not in planned(make_plan(suite(without), NO_DEEPSPEED))


def test_only_what_runs_elsewhere_has_another_id(suite, tmp_path):
    python(tmp_path / "old")
    plain = make_plan(suite(SUITE.replace("environments: {old: old}\n", "")), NO_DEEPSPEED)
    both = make_plan(suite(f"{SUITE}environment: [old, current]\n"), NO_DEEPSPEED)
    ids = {item.case.name: item.case.id for item in both.cases}
    assert {item.case.name: item.case.id for item in plain.cases}.items() <= ids.items()
    assert len(set(ids.values())) == 4
    assert (
        "environments"
        not in suite("workload: mlp\nbatch: {global_batch_size: 4}\nstrategies: [ddp]\n").to_resolved()
    )


def test_a_stored_suite_finds_them_wherever_it_is_read(suite, tmp_path):
    python(tmp_path / "old")
    mine = suite(f"{SUITE}environment: old\n")
    again = Suite.from_resolved(json.loads(json.dumps(mine.to_resolved())))
    assert planned(make_plan(again, NO_DEEPSPEED)) == planned(make_plan(mine, NO_DEEPSPEED))


def test_the_reference_of_a_check_is_that_of_the_current_one():
    assert reference_case(case("ddp", environment="old")) == reference_case(case("ddp"))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("environments: {current: old}", "environments.current = 'old': current is the name of"),
        ("environments: {a/b: old}", "environments.a/b = 'old': use letters, digits"),
        ("environments: {old: 3}", "environments.old = 3: expected the path of a virtual environment"),
        (
            "environment: old",
            "environment = 'old': unknown; the suite defines no environment other than current",
        ),
        (
            "environment: [current, odl]\nenvironments: {old: x}",
            "environment[1] = 'odl': unknown; did you mean 'old'?",
        ),
        ("include: [{strategy: ddp, environment: b}]", "include[0].environment = 'b': unknown"),
        ("exclude: [{environment: b}]", "exclude[0].environment = 'b': unknown"),
        ("axes: {environment: [a]}", "axes.environment[0] = 'a': unknown"),
        ("environment: 3", "environment = 3: expected text"),
    ],
)
def test_a_mistake_in_the_words_has_its_place(suite, line, told):
    text = f"{SUITE.replace('environments: {old: old}', '')}{line}\n"
    (mistake,) = refusal(lambda: suite(text))
    assert mistake.startswith(f"7: {told}")


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda at: None, "does not exist; create an environment there, or give the folder of a virtual"),
        (
            lambda at: link_python(at, "/gone/python3.9"),
            "bin/python is a link to /gone/python3.9, which does not exist on this machine; recreate",
        ),
        (
            lambda at: python(at, script="#!/gone/python\n"),
            "the program in its first line, or its loader, does not exist; recreate",
        ),
        (lambda at: at.mkdir(), "has no bin/python; give the folder of a virtual environment"),
        (lambda at: at.write_text("a text"), "is not a program; give the folder of a virtual environment"),
        (
            lambda at: python(at, script="#!/bin/sh\nexit 3\n"),
            "does not work: it exited with code 3: no output",
        ),
        (
            lambda at: python(at, script="#!/bin/sh\necho hello\n"),
            "is not a Python interpreter",
        ),
        (
            lambda at: python(at, script="nothing"),
            "it is not a program for this platform (",
        ),
        (
            lambda at: python(at, {"python": "3.10.12"}),
            "it is Python 3.10.12; distbench needs 3.11 or newer; create",
        ),
        (lambda at: python(at, {"prefix": sys.prefix}), "this is distbench's own environment"),
        (
            lambda at: python(at, {"missing": ["torch", "psutil"]}),
            "torch, psutil, which trials need; install with: {at}/bin/python -m pip install torch psutil",
        ),
    ],
)
def test_what_can_not_run_trials_is_refused_with_the_reason(suite, tmp_path, made, told):
    made(tmp_path / "old")
    (mistake,) = refusal(lambda: make_plan(suite(SUITE), NO_DEEPSPEED))
    assert mistake.startswith("5: environments.old = 'old': ")
    assert told.format(at=tmp_path / "old") in mistake


def test_one_that_is_removed_while_a_run_goes_on_is_named(tmp_path):
    gone = PythonTarget(python=str(tmp_path / "old" / "bin" / "python"))
    with pytest.raises(LaunchError, match=f"can't start {gone.python}: No such file or directory"):
        ForkServerClient((), {}, tmp_path / "log", 5.0, gone)


def test_a_real_python_without_torch_is_refused(suite, tmp_path):
    venv.create(tmp_path / "old", symlinks=True)
    (mistake,) = refusal(lambda: make_plan(suite(SUITE), NO_DEEPSPEED))
    assert "it does not contain numpy, psutil, nvidia-ml-py, safetensors, torch, which trials need" in mistake


def test_ranks_on_other_nodes_have_the_python_of_these(suite, tmp_path):
    python(tmp_path / "old")
    (mistake,) = refusal(
        lambda: make_plan(suite(f"{SUITE}launcher: {{ssh: {{hosts: [a]}}}}\n"), NO_DEEPSPEED)
    )
    assert mistake.startswith(
        "5: environments = 'ssh': launcher ssh can't use another Python than that of its nodes"
    )


def test_text_that_ships_with_python_is_not_compared_between_versions(suite, tmp_path):
    python(tmp_path / "old", {"python": "3.99.0"})
    told = planned(
        make_plan(suite(f"{SUITE.replace('synthetic', 'text')}environment: [current, old]\n"), NO_DEEPSPEED)
    )
    assert told["ddp/ws2/mb2/fp32"] is None
    assert "differs between versions (3.99.0 there" in (told["ddp/ws2/mb2/fp32/@old"] or "")


def record_in(
    environment: str = CURRENT_ENVIRONMENT, tokens_per_s: float = 1000.0, **packages: str
) -> Record:
    name = "ddp/ws2/mb4/fp32" + (f"/@{environment}" if environment != CURRENT_ENVIRONMENT else "")
    record = measured(case("ddp", name=name, environment=environment), tokens_per_s)
    record.effective["world_size"] = 2
    record.environment.update(python="3.11.4", packages={"torch": "2.13.0", **packages})
    return record


@pytest.mark.parametrize("place", [0, 1])
def test_a_report_says_which_versions_differ_and_compares_them_as_means(place):
    ours, theirs = (record_in(deepspeed="0.19.8"), record_in("old", 2000.0, deepspeed="0.14.0"))
    records = [theirs]
    records.insert(place, ours)
    run = run_of(*records)
    text = "@old: another Python environment, with deepspeed 0.14.0 (current: 0.19.8)."
    assert environment_sentences(records) == [text]
    assert header_facts(run)["software"] == "torch 2.13.0, DeepSpeed 0.19.8; @old: DeepSpeed 0.14.0"
    (group,) = run.parity.groups
    assert group.reference.case.environment == CURRENT_ENVIRONMENT
    kinds = {each.key: each.kind for each in group.differences[theirs.case.id]}
    assert kinds["software.deepspeed"] == "strategy"
    assert {row.case.environment: row.relative_throughput for row in run.cases} == {
        CURRENT_ENVIRONMENT: 1.0,
        "old": 2.0,
    }


def test_an_environment_like_the_current_one_is_told_as_such():
    assert environment_sentences([record_in(), record_in("twin")]) == [
        "@twin: another Python environment, with the versions of the current one in all that is recorded."
    ]


def test_a_configuration_says_where_its_case_was_measured():
    of = case("ddp", environment="old")
    assert "Python environment: old, as its suite calls it" in next(
        iter(export_case("torch", of, {}).files.values())
    )
    assert any("old, as its suite" in note for note in export_case("accelerate", of, {}).notes)
    assert of.strategy == PluginChoice("ddp")


def environment_without(folder: Path, module: str) -> Path:
    """A virtual environment with all that this one has but *module*."""
    (site,) = beside(folder).glob("lib/*/site-packages")
    (site / "hidden.py").write_text(f"""
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
""")
    (site / "hidden.pth").write_text("import hidden\n")
    return folder


TINY = """
workload: {transformer: {dim: 32, depth: 1, heads: 2, kv_heads: 2, ffn_dim: 64, seq_len: 16}}
data: synthetic
batch: {global_batch_size: 4}
measure: {warmup: 1, steps: 2, trials: 1, profile_steps: 0}
metrics: [throughput, steptime]
"""


@pytest.mark.train
def test_a_torch_without_a_part_that_one_strategy_needs_runs_the_others(run_suite, tmp_path):
    older = environment_without(tmp_path / "older", "torch.distributed.tensor.experimental._context_parallel")
    done = run_suite(f"""{TINY}
environments: {{older: {older}}}
environment: older
world_sizes: [2]
strategies: [ddp, cp: {{implementation: ring}}]
""")
    other, ring = done.cases.values()
    assert other["status"] == "measured", done.errors
    assert ring["status"] == "unsupported"
    assert "its ring attention is missing or has changed (No module named" in ring["reason"]


@pytest.mark.train
def test_one_that_starts_nothing_fails_its_own_cases_alone(run_suite, tmp_path):
    python(tmp_path / "old")
    done = run_suite(f"""{TINY}
environments: {{old: {tmp_path / "old"}}}
environment: [old, current]
world_sizes: [1]
strategies: [single]
""")
    told = {name.rpartition("/")[2]: case["status"] for name, case in done.cases.items()}
    assert told == {"@old": "crashed", "fp32": "measured"}, done.errors


@pytest.mark.train
@pytest.mark.parametrize("check", ["false", pytest.param("{steps: 1}", marks=pytest.mark.deep)])
def test_another_environment_trains_the_same_beside_the_current_one(run_suite, tmp_path, check):
    done = run_suite(f"""
workload: {{transformer: {{dim: 32, depth: 1, heads: 2, ffn_dim: 64, seq_len: 16}}}}
batch: {{global_batch_size: 4}}
optimizer: sgd
strategies: [single]
world_sizes: [1]
environments: {{other: {beside(tmp_path / "other")}}}
environment: [current, other]
measure: {{warmup: 1, steps: 2, trials: 1, profile_steps: 0}}
metrics: [throughput, steptime, convergence]
check: {check}
""")
    assert done.code == 0, done.errors
    run = RunAnalysis.read(Run(done.folder))
    assert "accelerate 0.0.1" in environment_sentences(run.timed_records)[0]
    ours, theirs = run.cases
    assert theirs.case.name == "single/ws1/mb4/fp32/@other"
    assert ours.losses == theirs.losses
    data = {record.effective["data"]["first_batch"] for record in run.timed_records}
    assert len(data) == 1
    verdicts = {row.verdicts["equivalence"].word for row in run.cases if "equivalence" in row.verdicts}
    assert verdicts <= {EQUIVALENT, ROUNDING}
    assert len(verdicts) == (check != "false")


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_mics_of_an_older_deepspeed_trains_the_same_in_groups_of_ranks(run_suite, tmp_path, precision):
    older = older_deepspeed(tmp_path / "older")
    done = run_suite(f"""
workload: {{transformer: {{dim: 64, depth: 2, heads: 4, kv_heads: 4, ffn_dim: 64, seq_len: 16}}}}
batch: {{global_batch_size: 8, gradient_accumulation_steps: 2}}
precision: {precision}
optimizer: {{clip_grad_norm: 0.1, weight_decay: 0.1}}
launcher: {{kept: {{oversubscribe: true}}}}
environments: {{older: {older}}}
environment: older
strategies: [{{zero: {{mics_shard_size: 2}}}}]
world_sizes: [4]
measure: {{warmup: 1, steps: 2, trials: 1}}
check: {{steps: 3, perturbed: 4}}
""")
    assert done.code == 0, done.errors
    (case,) = done.cases.values()
    assert case["equivalence"]["verdict"] in {EQUIVALENT, ROUNDING}
    (record,) = (each for each in Run(done.folder).records() if each.job.kind == "measure")
    moved, kept = compare_volume(record), largest_rank_memory(record)
    assert not call_count_mismatches(record)
    assert moved is not None
    assert moved.unexplained_share < UNEXPLAINED_TOLERANCE
    assert kept is not None
    assert abs(kept.difference or 0) < MODEL_STATE_TOLERANCE


WITHOUT = """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())
import distbench.worker.preload
"""


@pytest.mark.train
def test_a_warm_parent_imports_nothing_that_another_environment_may_lack():
    """Of what distbench depends on, such an environment has ``NEEDED`` alone."""
    declared = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    names = {re.split(r"[^a-z0-9]", each)[0] for each in declared["project"]["dependencies"]}
    # that of pynvml is nvidia-ml-py
    absent = names - {*REQUIRED_PACKAGES, "nvidia"}
    assert absent >= {"duckdb", "jinja2", "plotly", "pydantic", "rich", "ruamel", "scipy", "typer"}
    code = WITHOUT.replace("{absent}", repr(absent))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""What programs may rely on: flags, keys, columns, folders, ids and stored runs never change by accident.

The words that people read are not frozen; additions are allowed. A change that this test refuses
breaks somebody's script, dashboard or archive, so it needs a new format number or a deprecation.
``python tests/unit/project/test_frozen.py`` prints the surface of this version as JSON.
"""

import contextlib
import inspect
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import distbench
from distbench.cli import main
from support import runs
from support.suites import write_suite

HERE = Path(__file__).parents[2]
FROZEN = HERE / "frozen"
RUN = FROZEN / "run"
COMMANDS = [
    "init",
    "run",
    "measure",
    "plan",
    "doctor",
    "prepare",
    "launch",
    "attach",
    "list",
    "runs",
    "show",
    "report",
    "pick",
    "compare",
]
COMMANDS += [
    "export",
    "adopt",
    "query",
    "collectives",
    "probe",
    "gate",
    "calibrate",
    "history",
    "trace",
    "tune",
    "extrapolate",
    "completion",
]
SECTIONS = {
    "measure": {"bogus": 1},
    "limits": {"bogus": 1},
    "check": {"bogus": 1},
    "checkpoint": {"bogus": 1},
    "converge": {"targets": {"accuracy": 0.5}, "bogus": 1},
    "collectives": {"zzz": 1},
    "probe": {"bogus": 1},
    "gate": {"bogus": 1},
    "cost": {"per_device_hour": 1, "bogus": 1},
    "batch": {"global_batch_size": 8, "bogus": 1},
    "optimizer": {"bogus": 1},
    "precision": {"bogus": 1},
    "bogus": 1,
}
EXIT_CODES: dict[str, list[str]] = {
    "--version": ["--version"],
    "show": ["show", str(RUN)],
    "show of nothing": ["show", "nothing"],
    "no command": ["nothing"],
    "no such option": ["show", str(RUN), "--nothing"],
    "a suite that is not there": ["plan", "nothing.yaml"],
    "nothing fits": ["pick", str(RUN), "--memory", "1KiB"],
    "bad SQL": ["query", "selec", str(RUN)],
}
# a word of a closed list, although it may hold a space
WORDS = ("verdict", "word", "status", "state")


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def call(*arguments: str) -> Done:
    """Run the command line in this process: its commands import what they need only once."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.chdir(FROZEN), contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main(arguments)
    return Done(code, out.getvalue(), errors.getvalue())


def call_outside(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, with *variables* in its environment."""
    command = [sys.executable, "-m", "distbench", *arguments]
    environment = {**os.environ, **variables}
    return subprocess.run(command, cwd=FROZEN, env=environment, capture_output=True, text=True, check=False)


def help_text(*arguments: str) -> Any:
    done = call(*arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def flags(text: str) -> dict[str, bool]:
    """Flag -> whether it takes a value."""
    lines = re.findall(r"^  (?:(-\w), )?(--[\w-]+)(?:[ =]([A-Z\[]\S*))?", text, re.MULTILINE)
    return {name: bool(value) for short, long, value in lines for name in (short, long) if name}


def commands() -> dict[str, dict[str, bool]]:
    return {name: flags(call(name, "--help").stdout) for name in COMMANDS}


def pytest_flags() -> dict[str, bool]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--help"], capture_output=True, text=True, check=True
    )
    return {name: taken for name, taken in flags(done.stdout).items() if name.startswith("--distbench")}


def python_names() -> dict[str, dict[str, Any]]:
    """Arguments of the functions of ``import distbench``, and what a run has."""
    functions = {name: arguments(getattr(distbench, name)) for name in ("load", "measure", "run", "trace")}
    of_run = {name: each for name, each in vars(distbench.Run).items() if not name.startswith("_")}
    return {**functions, "Run": {name: arguments(each) for name, each in of_run.items()}}


def arguments(function: Any) -> dict[str, bool]:
    """Names of the arguments of *function*; empty for what is no function."""
    return dict.fromkeys(inspect.signature(function).parameters, True) if callable(function) else {}


def exit_codes() -> dict[str, int]:
    return {name: call(*arguments).returncode for name, arguments in EXIT_CODES.items()}


def outputs() -> dict[str, Any]:
    run, case = str(RUN), "ddp/ws2/mb8/fp32"
    return {
        "show": help_text("show", run, "--json"),
        "pick": help_text("pick", run, "--json", "--devices", "2"),
        "compare": help_text("compare", run, run, "--json"),
        "history": help_text("history", run, "--json"),
        "adopt": help_text("adopt", run, case, "--as", "torch", "--json", "--force"),
        # its values depend on the machine
        "plan": dict.fromkeys(help_text("plan", "ids.yaml", "--json"), True),
        "list": help_text("list", "strategies", "--json"),
    }


def suite_keys(section: str, folder: Path) -> list[str]:
    """The keys that *section* may have, as the message about one that it doesn't have names them."""
    lines = (FROZEN / "ids.yaml").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(f"{section}:")]
    suite = write_suite(folder, "\n".join([*kept, f"{section}: {json.dumps(SECTIONS[section])}\n"]))
    return re.findall(r"\w+", call("plan", str(suite)).stderr.partition("unknown key")[2])


def tables() -> dict[str, dict[str, str]]:
    found = help_text("query", "--tables", "--format", "json")
    return {table["name"]: {c["name"]: c["type"] for c in table["columns"]} for table in found}


def row_counts(names: Iterable[str]) -> dict[str, int]:
    counts = ", ".join(f"(select count(*) from {name}) as {name}" for name in names)
    (row,) = help_text("query", f"select {counts}", str(RUN), "--format", "json")
    return row


def ids() -> dict[str, str]:
    return {case["case"]: case["case_id"] for case in help_text("plan", "ids.yaml", "--json")["cases"]}


def differences(old: Any, new: Any, at: str = "") -> list[str]:
    """What of *old* is not in *new*; sentences, which are for people, are not compared."""
    if isinstance(old, dict) and isinstance(new, dict):
        missing = [f"{at}.{key}: gone" for key in old if key not in new]
        kept = [key for key in old if key in new]
        return missing + [line for key in kept for line in differences(old[key], new[key], f"{at}.{key}")]
    if isinstance(old, list) and isinstance(new, list):
        if (by_name := named_outputs(old)) or (not old and named_outputs(new)):
            # what has a name of its own may get company, and the first of its kind may come
            return differences(by_name, named_outputs(new), at)
        if len(old) != len(new):
            return [f"{at}: {len(old)} items, now {len(new)}"]
        pairs = enumerate(zip(old, new, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, f"{at}[{i}]")]
    if isinstance(old, str) and isinstance(new, str):
        sentence = " " in old and at.rpartition(".")[2] not in WORDS
        return [] if sentence or old == new else [f"{at}: {old!r}, now {new!r}"]
    same = (
        old == pytest.approx(new, rel=1e-9)
        if isinstance(old, float) and isinstance(new, float)
        else old == new
    )
    return [] if same else [f"{at}: {old!r}, now {new!r}"]


def named_outputs(items: list[Any]) -> dict[str, Any]:
    """Strategies or options by name; empty if *items* are something else."""
    described = [item for item in items if isinstance(item, dict) and item.keys() & {"options", "doc"}]
    return {item["name"]: item for item in described} if len(described) == len(items) else {}


@pytest.fixture(scope="module")
def frozen_surface() -> dict[str, Any]:
    return json.loads((FROZEN / "surface.json").read_text())


def test_every_command_keeps_its_flags(frozen_surface):
    assert differences(frozen_surface["commands"], commands()) == []


def test_pytest_keeps_its_flags(frozen_surface):
    assert differences(frozen_surface["pytest"], pytest_flags()) == []


def test_python_keeps_its_functions_and_their_arguments(frozen_surface):
    assert differences(frozen_surface["python"], python_names()) == []


def test_exit_codes_stay(frozen_surface):
    assert exit_codes() == frozen_surface["exit_codes"]


def test_what_a_stored_run_says_as_json_stays(frozen_surface):
    assert differences(frozen_surface["outputs"], outputs()) == []


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_of_a_suite_keeps_its_keys(section, frozen_surface, tmp_path):
    assert set(frozen_surface["suite_keys"][section]) <= set(suite_keys(section, tmp_path))


def test_sql_keeps_its_tables_columns_and_rows(frozen_surface):
    assert differences(frozen_surface["tables"], tables()) == []
    assert differences(frozen_surface["row_counts"], row_counts(frozen_surface["row_counts"])) == []


def test_ids_of_cases_stay(frozen_surface):
    assert differences(frozen_surface["ids"], ids()) == []


def test_the_schema_of_a_gates_result_stays():
    now = json.loads(resources.files("distbench.gate").joinpath("result.schema.json").read_text())
    assert differences(json.loads((FROZEN / "gate.schema.json").read_text()), now) == []


@pytest.mark.parametrize("view", ["time", "memory", "equivalence", "convergence", "checkpoint"])
def test_every_view_of_the_stored_run_has_a_row_for_its_case(view):
    done = call("show", str(RUN), "--view", view)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ddp\b", done.stdout, re.MULTILINE) and "ws2/" in done.stdout


def test_plugins_are_found_where_the_variable_says():
    done = call_outside("list", "strategies", "--json", DISTBENCH_PLUGINS=str(HERE / "plugins"))
    assert "sleepy" in done.stdout


def test_the_parent_never_imports_torch(tmp_path):
    """A torch that refuses to be imported stands first on the path."""
    for name in ("torch", "deepspeed"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} was imported by the parent')\n")
    commands = [
        ["plan", "ids.yaml"],
        ["list"],
        ["show", str(RUN)],
        ["pick", str(RUN)],
        ["compare", str(RUN), str(RUN)],
        ["query", "select 1", str(RUN)],
        ["history", str(RUN)],
        ["adopt", str(RUN), "ddp/ws2/mb8/fp32", "--as", "torch", "--force"],
        ["gate", "ids.yaml", "--self-test", "--dry-run"],
    ]
    code = f"from distbench.cli import main\nprint([main(each) for each in {commands!r}])"
    path = os.pathsep.join([str(tmp_path), str(HERE.parent)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=FROZEN,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str([0] * len(commands))


@pytest.mark.train
def test_a_new_run_has_the_folders_and_files_of_the_stored_one(tmp_path):
    suite = RUN / "suite.yaml"
    # the weights of its day, so that these are the same cases
    keys = ("--set", "initial_weights=exact", "--set", "launcher=kept", "--only", "single/ws1*")
    done = runs.call("run", str(suite), "--out", str(tmp_path), "--quiet", *keys)
    assert done.returncode == 0, done.stderr
    (run,) = tmp_path.iterdir()
    for record in RUN.glob("*/single-*/0/record.json"):
        folder = record.parent.relative_to(RUN)
        assert {file.name for file in record.parent.iterdir()} <= {
            file.name for file in (run / folder).iterdir()
        }
        new = json.loads((run / folder / "record.json").read_text())
        assert set(json.loads(record.read_text())) <= set(new), folder
    assert set(json.loads((RUN / "run.json").read_text())) <= set(json.loads((run / "run.json").read_text()))


def current_surface(folder: Path) -> dict[str, Any]:
    return {
        "commands": commands(),
        "pytest": pytest_flags(),
        "python": python_names(),
        "exit_codes": exit_codes(),
        "outputs": outputs(),
        "suite_keys": {section: suite_keys(section, folder)[1:] for section in SECTIONS},
        "tables": tables(),
        "row_counts": row_counts(tables()),
        "ids": ids(),
    }


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(current_surface(Path(folder)), indent=1))  # noqa: T201

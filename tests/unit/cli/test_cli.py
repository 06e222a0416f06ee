"""The command line: what it prints, where, and with which exit code."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from distbench.cli import commands
from distbench.core.registry import PLUGIN_KINDS
from distbench.record import FORMAT_VERSION
from distbench.record.catalog import find_run_strict
from distbench.views.base import all_views
from support.suites import SuiteText, write_suite

SUITES = Path(__file__).parents[3] / "suites"
COMMANDS = sorted(file.stem.rstrip("_") for file in Path(commands.__file__).parent.glob("[!_]*.py"))

SUITE = SuiteText("""\
workload: transformer
batch: {global_batch_size: 8}
strategies: [single, ddp]
world_sizes: [1]
""")


@pytest.fixture
def write(tmp_path) -> Callable[[str], str]:
    return lambda text: str(write_suite(tmp_path, text, "mine.yaml"))


@pytest.mark.parametrize(
    ("change", "place", "what"),
    [
        (("batch:", "bach:"), ":2", "bach = {global_batch_size: 8}: unknown key; did you mean 'batch'?"),
        (("8}", "eight}"), ":2", "batch.global_batch_size = 'eight': expected a whole number"),
        (("8}", "-8}"), ":2", "batch.global_batch_size = -8: must be at least 1"),
        (("8}", "8, global_batch_size: 4}"), ":2", "batch.global_batch_size: duplicate key; keep one"),
        (("ddp", "dddp"), ":3", "strategies[1] = 'dddp': unknown; did you mean 'ddp'?"),
        (
            ("transformer", "transfomer"),
            ":1",
            "workload = 'transfomer': unknown; did you mean 'transformer'?",
        ),
        (("transformer", "{transformer: {heads: 7}}"), ":1", "workload.transformer.heads = 7: "),
        (("transformer", "{transformer: {vocab_size: 99}}"), ":1", "workload.transformer.vocab_size = 99: "),
        (("8}", "8, micro_batch_size: 3}"), ":2", "batch.global_batch_size = 8: is not divisible by"),
        (("[1]", "[4096]"), ":4", "world_sizes[0] = 4096: 4096 ranks need"),
        (("strategies", "data: {tokens: {path: no.bin}}\nstrategies"), ":3", "data.tokens.path = 'no.bin': "),
        (("[1]", "[1"), ":5", "not YAML: "),
    ],
)
def test_bad_input_gets_file_line_key_and_value_and_exit_code_2(command, write, change, place, what):
    file = write(SUITE.replace(*change))
    code, output, errors = command("plan", file)
    assert (code, output) == (2, "")
    assert f"distbench: error: {file}{place}: {what}" in errors


def test_nothing_is_made_for_a_suite_that_is_refused(command, write, tmp_path):
    code, _, errors = command("run", write("seed: x\n" + SUITE), "--out", str(tmp_path / "out"))
    assert (code, len(errors.splitlines())) == (2, 1)
    assert not (tmp_path / "out").exists()


def test_each_mistake_is_one_line_on_stderr(command, write):
    _, _, errors = command("plan", write("seed: x\nname: 3\n" + SUITE), "--set", "measure.stepz=10")
    lines = errors.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("distbench: error: ") for line in lines)
    assert "--set measure.stepz=10: measure.stepz = 10: unknown key; did you mean 'steps'?" in lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "missing SUITE"),
        (["run", "--resume", "x", "suite.yaml"], "--resume takes no SUITE"),
        (["run", "--resume", "nothing"], "nothing: no such run"),
        (["plan"], "Missing argument 'SUITE'"),
        (["plan", "no.yaml"], "no.yaml: no such file"),
        (["plan", "x.yaml", "--world-sizes", "1,two"], "--world-sizes = '1,two': expected whole numbers"),
        (["plan", "x.yaml", "--fast"], "No such option"),
        (["paln"], "No such command 'paln'"),
        (["list", "strategy"], "did you mean 'strategies'?"),
        (["list", "", "zero"], "list: missing KIND before 'zero'; kinds: "),
        (["list", "suite", "zero"], "list suite: takes no name, not 'zero'"),
        (["init", "nofolder/x.yaml"], "nofolder/x.yaml: the folder nofolder does not exist"),
        (
            ["adopt", "x", "ddp", "--as", "torch", "--json", "--into", "y"],
            "--json prints the files, and --into",
        ),
        (["show", "nothing"], "nothing: no such run"),
        (["report", "."], "run.json is missing"),
    ],
)
def test_a_command_that_can_not_be_done_says_why(command, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, output, errors = command(*arguments)
    assert (code, output) == (2, "")
    assert errors.startswith("distbench: error: ")
    assert message in errors


@pytest.mark.drill("--out can't be written")
def test_a_folder_that_can_not_be_written_is_said_before_anything_is_launched(command, write, tmp_path):
    (tmp_path / "file").touch()
    code, _, errors = command("run", write(SUITE), "--out", str(tmp_path / "file" / "out"))
    assert code == 2
    assert "can't create a folder for the run: Not a directory; choose another folder" in errors


@pytest.mark.parametrize("name", ["show", "report"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("{", "corrupt: not valid JSON"),
        ("{}", "format: missing"),
        ('{"format": 99}', "written by a newer distbench"),
        ('{"format": 0}', "too old"),
    ],
)
def test_a_run_that_can_not_be_read_says_why(command, tmp_path, name, content, message):
    (tmp_path / "run.json").write_text(content)
    code, _, errors = command(name, str(tmp_path))
    assert code == 2
    assert message in errors


@pytest.fixture
def runs(tmp_path):
    """A folder with two runs that can't be read."""
    for run_id in ("aa11bb22", "aa22bb22"):
        (tmp_path / f"mine-2026-{run_id}").mkdir()
        (tmp_path / f"mine-2026-{run_id}" / "run.json").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("aa1", "mine-2026-aa11bb22/run.json: corrupt"),
        ("mine-2026-aa1", "mine-2026-aa11bb22/run.json: corrupt"),
        ("aa", "more than one run: mine-2026-aa11bb22, mine-2026-aa22bb22"),
        ("aa12bb22", "did you mean mine-2026-aa"),
        ("mine-2025-aa22bb22", "did you mean mine-2026-aa22bb22?"),
        ("zz", "mine-2026-aa11bb22, mine-2026-aa22bb22"),
    ],
)
def test_a_run_is_found_by_the_start_of_its_id_or_name(command, runs, name, message):
    code, _, errors = command("show", name, "--out", str(runs))
    assert (code, message in errors) == (2, True), errors


def test_a_baseline_is_a_stored_run_only_if_it_can_be_nothing_else(runs):
    assert find_run_strict("aa11", runs).folder == runs / "mine-2026-aa11bb22"
    assert find_run_strict(str(runs / "mine-2026-aa11bb22"), runs).folder == runs / "mine-2026-aa11bb22"
    for name in ("", "aa1", "aa", "mine-2026-aa11bb22", "bb22", str(runs)):
        assert find_run_strict(name, runs) is None


def test_a_baseline_that_is_a_run_and_a_commit_is_refused(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    told = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    run = tmp_path / "out" / f"mine-2026-{told[:8]}"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    code, _, errors = command("gate", "suite.yaml", "--baseline", told[:4], "--out", "out")
    assert code == 2
    assert (
        f"--baseline {told[:4]}: ambiguous: matches the ID of the run out/{run.name} and a git commit"
        in errors
    )
    code, _, errors = command("gate", "suite.yaml", "--baseline", f"out/{run.name}", "--out", "out")
    assert "git commit" not in errors


@pytest.mark.train
def test_plan_tells_a_long_reason_once(command, write):
    text = SUITE.replace("[single, ddp]", "[fsdp: {sharding: [full, grad_op]}]").replace("[1]", "[2]")
    code, output, errors = command("plan", write(f"{text}optimizer: {{name: sgd, lr: 0.1}}\n"))
    assert (code, errors) == (0, "")
    flat = " ".join(output.split())
    assert flat.count("torch has no fused SGD for sharded tensors; set optimizer.kernel: foreach") == 1
    assert "unsupported: as fsdp/ws2/mb4/fp32" in flat


@pytest.mark.train
def test_plan_shows_cases_problems_time_and_commands(command, write, tmp_path):
    file = write(SUITE.replace("ddp", "dp"))
    set_, out = ("--set", "measure.trials=2"), str(tmp_path / "out")
    code, output, errors = command("plan", file, "--out", out, "--commands", *set_)
    assert (code, errors) == (0, "")
    assert "mine: 2 cases, 2 trials" in output
    assert "unsupported: nn.DataParallel needs" in " ".join(output.split())
    assert "export DISTBENCH_RUN_ID=RUN" in output
    assert "-P -X utf8 -m distbench.worker rank" in output
    assert "expected time: unknown: no earlier run of these cases" in output
    assert not (tmp_path / "out").exists()


@pytest.mark.train
def test_plan_tells_the_time_first_and_no_command_unless_it_is_asked_for(command, write, tmp_path):
    code, output, _ = command("plan", write(SUITE), "--out", str(tmp_path / "out"))
    size, time, *_ = output.splitlines()
    assert (code, size[:19]) == (0, "mine: 2 cases, 6 tr")
    assert time.startswith("expected time: unknown: no earlier run of these cases")
    text = " ".join(output.split())
    assert "--estimate measures one short trial of each" in text
    assert "time limits: preparation 15 min 00 s; of a trial: start 2 min 00 s, " in text
    assert "h 15 min" not in text, "the sum of all limits, which no run comes near"
    assert "distbench.worker" not in text
    assert "--commands shows what would be launched." in text


def test_plan_lists_the_cases_of_nodes_that_are_not_at_hand(command, write):
    suite = write(SUITE.replace("size: 8", "size: 32").replace("[1]", "auto"))
    asked = ["plan", suite, "--gpus-per-node", "8", "--nodes", "4"]
    code, output, errors = command(*asked)
    text = " ".join(output.split())
    assert (code, errors) == (0, "")
    assert "cuda x 32" in text
    assert "machine: 4 nodes with 8 GPUs each, as given" in text
    assert "ddp/ws32/" in text
    assert not any(word in text for word in ("sbatch", "--commands", "--estimate"))
    _, output, _ = command(*asked, "--on", "slurm", "--json")
    shown = json.loads(output)
    assert (shown["device"], shown["devices"], shown["launches"]) == ("cuda", 32, [])
    assert {each["world_size"] for each in shown["cases"]} == {1, 2, 4, 8, 16, 32}
    assert shown["submission"]["command"][0] == "sbatch"


@pytest.mark.train
def test_data_parallel_on_more_devices_than_a_node_has_is_unsupported(command, write):
    suite = write(SUITE.replace("strategies: [single, ddp]", "strategies: [dp]"))
    options = ["--world-sizes", "4,8", "--gpus-per-node", "4", "--nodes", "2", "--json"]
    _, output, _ = command("plan", suite, *options)
    reasons = {each["world_size"]: each["reason"] for each in json.loads(output)["cases"]}
    assert reasons == {4: "", 8: "nn.DataParallel uses the devices of one node, which has 4"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--gpus-per-node", "0"], "--gpus-per-node = 0: must be at least 1"),
        (["--gpus-per-node", "8", "--nodes", "0"], "--nodes = 0: must be at least 1"),
        (["--nodes", "4"], "--nodes = 4: goes with --on or --gpus-per-node; add one of them"),
        (["--gpus-per-node", "8", "--estimate"], "--estimate and --commands are about this machine"),
        (["--gpus-per-node", "8", "--commands"], "--estimate and --commands are about this machine"),
    ],
)
def test_plan_refuses_options_that_do_not_go_together(command, write, options, why):
    code, output, errors = command("plan", write(SUITE), *options)
    assert (code, output) == (2, "")
    assert why in " ".join(errors.split())


@pytest.mark.train
def test_plan_as_json_is_one_document(command, write):
    _, output, _ = command("plan", write(SUITE), "--json", "--only", "ddp")
    plan = json.loads(output)
    assert [(case["case"], case["status"]) for case in plan["cases"]] == [("ddp/ws1/mb8/fp32", "planned")]
    assert [trial["round"] for trial in plan["trials"]] == [0, 1, 2]
    assert plan["launches"][0]["environment"]["OMP_NUM_THREADS"]
    assert plan["expected_s"] is None


@pytest.mark.train
def test_plan_takes_the_expected_time_from_earlier_runs_of_the_same_cases(command, write, tmp_path):
    file = write(SUITE)
    _, output, _ = command("plan", file, "--json")
    for number, case in enumerate(json.loads(output)["cases"]):
        folder = tmp_path / "out" / "run" / "trials" / f"x-{case['case_id']}" / "0"
        folder.mkdir(parents=True)
        record = {"format": FORMAT_VERSION, "status": "measured", "wall_s": 2.0 + number}
        (folder / "record.json").write_text(json.dumps(record))
    (tmp_path / "out" / "run" / "run.json").write_text('{"suite": {"measure": {}}}')
    _, output, _ = command("plan", file, "--json", "--out", str(tmp_path / "out"))
    assert json.loads(output)["expected_s"] == 3 * (2 + 3)


def test_list_shows_options_with_default_and_doc_in_the_words_of_a_suite(command):
    code, output, _ = command("list", "strategies")
    assert code == 0
    assert "bucket_cap_mb: number; default: 25.0" in output
    assert "overlap_comm: true or false or null; default: null" in output
    assert "workloads" not in output
    everything = command("list")[1]
    assert 'preset: tiny, moe-tiny, gpt2-small, 1b, 3b, 8b, 70b, auto; default: "tiny"' in everything
    assert "model: text; required" in everything
    assert "model_type: text or null; default: null" in everything
    for word in ("None", "Literal", "Optional", "Union", "tuple", "()", "dict["):
        assert word not in everything


def test_list_as_json_has_the_columns_of_metrics(command):
    _, output, _ = command("list", "--json")
    listed = json.loads(output)
    assert set(listed) == set(PLUGIN_KINDS)
    columns = [column for metric in listed["metrics"] for column in metric["columns"]]
    assert {"name", "unit", "better", "doc"} <= set(columns[0])


def test_every_view_of_show_is_listed(command):
    _, output, _ = command("list", "views", "--json")
    listed = {view["name"]: view["summary"] for view in json.loads(output)["views"]}
    assert listed.keys() == all_views().keys() > {"equivalence", "links", "time"}
    assert all(listed.values())
    assert "equivalence: verdict on each case" in command("list", "views", "equivalence")[1]


def test_a_plugin_of_ones_own_is_listed_and_a_broken_one_hides_no_other(command, tmp_path, monkeypatch):
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "broken.py").write_text("import no_such_module\n")
    (tmp_path / "metrics" / "hum.py").write_text(
        "from dataclasses import dataclass\n"
        "from distbench.metrics.base import Column, Metric\n"
        "@dataclass(frozen=True)\n"
        "class Hum(Metric):\n"
        '    """How loud it is."""\n'
        '    columns = (Column("hum", "dB", "lower", "max", "Loudness."),)\n'
    )
    monkeypatch.setenv("DISTBENCH_PLUGINS", str(tmp_path))
    code, output, _ = command("list", "metrics")
    assert code == 0
    assert "hum: How loud it is." in output
    assert "hum: dB, lower is better" in output
    assert "broken: can't be used:" in output
    assert "steptime:" in output


def test_what_a_suite_says_can_not_act_on_the_terminal(command, write):
    text = SUITE + 'name: "\\e[31mred\\e[0m[bold]\\u202e"\n'
    code, output, _ = command("plan", write(text))
    assert code == 0
    assert output.startswith("red[bold]: 2 cases")
    _, _, errors = command("plan", write(SUITE + 'device: "\\e]0;title\\a"\n'))
    assert "\x1b" not in errors
    assert "\x07" not in errors


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "distbench", *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_the_command_works_as_a_module():
    assert run("--version").stdout.startswith("distbench ")
    done = run("plan", "no.yaml")
    assert (done.returncode, done.stderr.startswith("distbench: error: no.yaml: ")) == (2, True)


def test_no_command_is_answered_with_the_help(command):
    code, output, _ = command()
    assert (code, output.startswith("Usage: distbench")) == (2, True)


def test_help_names_each_command_in_its_place(command):
    code, output, _ = command("--help")
    names = [line.split()[0] for line in output.partition("Commands:")[2].strip().splitlines()]
    assert (code, names[:3], names[-1]) == (0, ["init", "run", "measure"], "completion")
    assert sorted(names) == COMMANDS


def test_output_that_nobody_reads_to_the_end_is_no_error():
    command = f"{sys.executable} -m distbench list | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "strategies\n", "")


def imported_by(arguments: list[str]) -> set[str]:
    """Modules that a process has imported once the command has ended."""
    code = f"import sys; from distbench.cli import main; main({arguments}); print('imported', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "arguments", [["list"], ["plan", str(SUITES / "zero.yaml")]], ids=lambda words: words[0]
)
def test_the_parent_imports_nothing_heavy(arguments):
    heavy = {"torch", "deepspeed", "transformers", "sklearn", "scipy", "plotly", "pandas", "duckdb", "jinja2"}
    if arguments[0] != "plan":
        heavy |= {"numpy", "pydantic", "ruamel.yaml"}
    assert heavy & imported_by(arguments) == set()


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_imports_no_more_than_its_options_need(command):
    """A command imports what it works with when it works: help and completion are answered at once."""
    imported = imported_by([*filter(None, [command]), "--help"])
    heavy = {"torch", "deepspeed", "numpy", "scipy", "pydantic", "ruamel.yaml", "yaml", "plotly", "pyarrow"}
    heavy |= {"pandas", "duckdb", "jinja2", "rich", "psutil", "pynvml", "pytest", "xml", "importlib.metadata"}
    assert heavy & imported == set()
    packages = {name.split(".")[1] for name in imported if name.startswith("distbench.")}
    assert {"cli", "core"} <= packages <= {"cli", "core", "tables"}


@pytest.mark.drill("a disk too small at the start")
def test_a_disk_without_room_is_said_before_anything_is_launched(write, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    run = f"mount -t tmpfs -o size=2m tmpfs {disk} && {sys.executable} -m distbench run {write(SUITE)}"
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", f"{run} --out {disk}; echo code $?; ls {disk}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "64.0 MiB; free some space" in done.stderr
    assert done.stdout == "code 2\n"


def test_a_plugin_that_ends_the_process_is_named(command, tmp_path, monkeypatch):
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "bad.py").write_text("raise SystemExit(3)\n")
    monkeypatch.setenv("DISTBENCH_PLUGINS", str(tmp_path))
    code, output, errors = command("list", "strategies", "bad")
    assert (code, errors) == (0, "")
    assert "bad.py: can't import this plug-in: SystemExit(3)" in " ".join(output.split())


def test_a_plugin_without_a_docstring_is_listed_without_one(command, tmp_path, monkeypatch):
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "bare.py").write_text(
        "from dataclasses import dataclass\nfrom distbench.strategies.single import Single\n\n\n"
        "@dataclass(frozen=True)\nclass Bare(Single):\n    n: int = 3\n"
    )
    monkeypatch.setenv("DISTBENCH_PLUGINS", str(tmp_path))
    code, output, _ = command("list", "strategies", "bare", "--json")
    assert code == 0
    assert "Bare(" not in output


def test_a_run_without_a_measurable_case_is_no_success(tmp_path, distbench):
    text = "workload: {mlp: {}}\nbatch: {global_batch_size: 8}\nworld_sizes: [2]\nstrategies: [dp]\n"
    done = distbench("run", str(write_suite(tmp_path, text)), "--out", str(tmp_path / "out"))
    assert "dp    unsupported: " in done.stdout
    assert (done.returncode, done.stderr.strip()) == (
        3,
        "distbench: error: No case could be measured: all are unsupported here.",
    )

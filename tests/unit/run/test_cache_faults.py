"""A cache that is damaged, full or read-only, and builds that crash: what they cost, and what is told."""

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distbench import plan
from distbench.core.machine import Machine
from distbench.core.registry import PLUGIN_PATH_VARIABLE
from distbench.core.text import compiler_error_line
from distbench.ipc.build_files import BuildEvent, BuildItem, BuildJournalReader, write_items
from distbench.suite import load_suite
from distbench.system import build_cache
from distbench.system.cache import cache_folder
from support.leftover_processes import with_variable
from support.runs import PLUGINS, QUICK
from support.suites import write_suite

SUITE = "workload: {mlp: {}}\nbatch: {global_batch_size: 8}\nworld_sizes: [2]\n"
MACHINE = Machine("cpu", 2, {"torch": "9", "deepspeed": "9"}, has_libaio=False, has_compiler=True)


class Preparation:
    """Prepares strategies of the plug-in ``compiled`` in a process of its own, without torch."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(PLUGIN_PATH_VARIABLE, PLUGINS)
        self.folder = folder
        self.cache = folder / "cache"

    @property
    def library(self) -> Path:
        """The library that it builds."""
        return self.cache / "compiled" / "compiled.so"

    def start(
        self, does: str, name: str = "prepare", **variables: str
    ) -> tuple[subprocess.Popen[bytes], BuildJournalReader]:
        """Start to prepare a strategy that *does* so; *name* keeps the files of two of them apart."""
        suite = self.folder / f"{name}.yaml"
        suite.write_text(f"{SUITE}strategies: [{{compiled: {{does: {does}}}}}]\n")
        file = suite.with_suffix(".json")
        (case,) = [item.case for item in plan.make_plan(load_suite(suite), MACHINE).cases]
        write_items(file, [BuildItem("strategy", case.label, case.to_json())])
        variables = {"DISTBENCH_CACHE": str(self.cache), "COMPILES": "at once", **variables}
        command = [sys.executable, "-m", "distbench.worker", "prepare", str(file)]
        return subprocess.Popen(command, env={**os.environ, **variables}), BuildJournalReader(file)

    def __call__(self, does: str, **variables: str) -> BuildEvent:
        """Prepare a strategy that *does* so; return what came of it."""
        process, journal = self.start(does, **variables)
        assert process.wait() == 0
        _, ended = journal.read_new()
        return ended

    def builds(self) -> int:
        """How often the building of the library was begun."""
        log = self.library.with_suffix(".log")
        return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.fixture
def preparation(tmp_path, monkeypatch) -> Preparation:
    """Prepare strategies in a cache of their own."""
    return Preparation(tmp_path, monkeypatch)


def truncate(library: Path) -> None:
    """Keep the first half of *library*, as a power cut may."""
    os.truncate(library, library.stat().st_size // 2)


def empty(library: Path) -> None:
    """Keep nothing but the name of *library*."""
    os.truncate(library, 0)


def overwrite(library: Path) -> None:
    """Fill *library* with zeros, as a power cut may."""
    library.write_bytes(bytes(library.stat().st_size))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(truncate, marks=pytest.mark.drill("cache: a library is half-written")),
        pytest.param(empty, marks=pytest.mark.drill("cache: a library is empty")),
        pytest.param(overwrite, marks=pytest.mark.drill("cache: a library is all zeros")),
    ],
)
def test_a_damaged_library_is_built_again_and_named(preparation, drill, damage):
    assert preparation("works").notes == []
    damage(preparation.library)
    ended = preparation("works")
    assert ended.failed == ""
    (note,) = ended.notes
    drill.seen(note)
    assert f"rebuilt {preparation.library}, because the cached copy was damaged (" in note
    assert ctypes.CDLL(str(preparation.library)).mine
    assert preparation("works").notes == []
    assert preparation.builds() == 2, "it is mended once"


@pytest.mark.drill("cache: two runs at once, cold")
def test_two_preparations_of_one_cache_build_a_library_once(preparation):
    both = [preparation.start("works", name) for name in ("one", "other")]
    assert [process.wait() for process, _ in both] == [0, 0]
    assert [event.failed for _, journal in both for event in journal.read_new()] == [""] * 4
    assert preparation.builds() == 1


def test_a_lock_file_that_goes_while_a_library_is_flushed_to_disk_fails_nothing(tmp_path):
    parts = tmp_path / "op"

    def build() -> None:
        parts.mkdir()
        command = ["g++", "-shared", "-x", "c++", "/dev/null", "-o", str(parts / "op.so")]
        subprocess.run(command, check=True)
        # listed, and gone when it is opened: the lock of a process that has just loaded the library
        (parts / "lock").symlink_to("gone")

    assert build_cache.ensure_built(parts / "op.so", build, parts) == []


@pytest.mark.drill("cache: a builder is killed while another one waits for it")
def test_a_builder_that_is_killed_holds_nobody_up(preparation):
    killed, _ = preparation.start("works", "killed", COMPILES="hangs")
    while not preparation.builds():
        assert killed.poll() is None
        time.sleep(0.02)
    waiting, journal = preparation.start("works", "waiting")
    while not journal.read_new():
        assert waiting.poll() is None
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    assert waiting.wait() == 0
    assert ctypes.CDLL(str(preparation.library)).mine


@pytest.mark.drill("cache: read-only")
def test_a_cache_that_cannot_be_written_says_which_variable_moves_it(preparation, drill):
    # nobody can make a folder there, not even root
    ended = preparation("works", DISTBENCH_CACHE="/sys/distbench")
    drill.seen(ended.failed)
    assert "can't write to the cache /sys/distbench (" in ended.failed
    assert "set DISTBENCH_CACHE" in ended.failed


@pytest.mark.drill("cache: full")
def test_a_full_disk_is_told_in_the_compilers_last_line(preparation, drill):
    ended = preparation("fills")
    drill.seen(ended.failed)
    assert "'compiled': /usr/bin/ld: final link failed: No space left on device; free some" in ended.failed
    assert f"set DISTBENCH_CACHE (now {preparation.cache})" in ended.failed
    assert len(ended.failed) < 300 + len(str(preparation.cache))


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("op.cpp:1: fatal error: omp.h: No such file\n 1 | #include <omp.h>\ncompilation terminated.", 0),
        ("c.s: Assembler messages:\nc.s: Fatal error: can't write to op.o: 'No space left'", 1),
        ("/usr/bin/ld: cannot find -lcudart: No such file\ncollect2: error: ld returned 1 exit status", 0),
        ("g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.", 0),
        ("ninja: error: opening build log: Read-only file system", 0),
    ],
)
def test_of_a_compilers_output_the_line_that_says_what_is_wrong_is_told(output, line):
    before = "Error building extension 'op': [1/2] c++ -o op.o -c op.cpp\nFAILED: op.o\nc++ -c op.cpp"
    expected = f"Error building extension 'op': {output.splitlines()[line]}"
    assert compiler_error_line(f"{before}\n{output}\nninja: build stopped: subcommand failed.") == expected


def test_an_error_that_no_compiler_printed_is_told_whole():
    text = "no such weights\nin the folder"
    assert compiler_error_line(text) == text


@pytest.mark.drill("python of an environment that is not activated")
def test_a_worker_finds_the_tools_of_its_own_environment(preparation, drill):
    ended = preparation("looks", PATH="/usr/bin:/bin")
    assert ended.notes == [str(Path(sys.executable).with_name("python"))]
    drill.seen(f"tools are found in {Path(ended.notes[0]).parent.name} of the environment")


@pytest.mark.train
@pytest.mark.parametrize(
    "ended_by",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.drill("Ctrl-C while preparing")),
        pytest.param(signal.SIGKILL, marks=pytest.mark.drill("kill -9 of the command line while preparing")),
    ],
)
def test_a_preparation_that_is_stopped_leaves_no_process(preparation, monkeypatch, drill, ended_by):
    temporary = preparation.folder / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    suite = write_suite(
        preparation.folder,
        f"{SUITE}launcher: {{local: {{warm: false}}}}\nstrategies: [{{compiled: {{does: hangs}}}}]\n",
    )
    command = [sys.executable, "-m", "distbench", "prepare", str(suite)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    while not any(file.read_text() for file in temporary.glob("*/prepare/0/prepare.journal")):
        assert process.poll() is None
        time.sleep(0.02)
    since = time.monotonic()
    process.send_signal(ended_by)
    process.communicate()
    while with_variable(f"TMPDIR={temporary}"):
        assert time.monotonic() < since + 20
        time.sleep(0.02)
    drill.noticed(time.monotonic() - since)
    assert process.returncode == (130 if ended_by is signal.SIGINT else -signal.SIGKILL)


@pytest.mark.drill("a build dies of SIGBUS")
@pytest.mark.train
def test_a_build_that_crashes_fails_the_cases_that_need_it_and_no_others(run_suite, drill):
    finished = run_suite(QUICK + "strategies: [{compiled: {does: [crashes, works]}}]\n")
    reasons = {case["strategy"]: case["reason"] for case in finished.cases.values()}
    reason = reasons["compiled+crashes"]
    drill.seen(reason)
    told = r"strategy compiled\+crashes \(\w{10}\): the build process was killed by SIGBUS; "
    assert re.match(told, reason)
    assert reason.endswith(f"cache: {cache_folder()}")
    assert [case["status"] for case in finished.cases.values()] == ["prepare_failed", "measured"]


@pytest.mark.drill("a build hangs")
@pytest.mark.train
def test_a_build_that_takes_too_long_is_named_and_those_after_it(run_suite, drill):
    text = QUICK.replace("limits: {step: 30}", "limits: {prepare: 1}")
    finished = run_suite(text + "strategies: [{compiled: {does: [hangs, works]}}]\n")
    reasons = {case["strategy"]: case["reason"] for case in finished.cases.values()}
    drill.seen(reasons["compiled+hangs"])
    assert "): exceeded limits.prepare = 1 s; see " in reasons["compiled+hangs"]
    assert reasons["compiled+works"].endswith("): not built: exceeded limits.prepare = 1 s")


@pytest.mark.train
def test_prepare_shows_what_it_builds_and_what_failed(distbench, tmp_path):
    suite = write_suite(
        tmp_path, QUICK + "launcher: kept\nstrategies: [ddp, {compiled: {does: [works, fills]}}]\n"
    )
    done = distbench("prepare", str(suite))
    assert done.returncode == 1
    assert re.search(r"^\[\d/\d\] strategy compiled\+fills \(\w+\): failed$", done.stderr, re.MULTILINE)
    assert re.search(
        r"error: strategy compiled\+fills .*: RuntimeError: Error building extension ", done.stderr
    )
    assert "[" not in distbench("prepare", str(suite), "--quiet").stderr
    ready = distbench("prepare", str(suite), "--only", "*works*")
    assert (ready.returncode, f"; C++ libraries: {cache_folder()}" in ready.stderr) == (0, True)


@pytest.mark.drill("cache: DeepSpeed's op and the counting allocator are half-written")
@pytest.mark.train
@pytest.mark.deep
def test_an_op_and_the_allocator_are_mended(run_suite, distbench, tmp_path):
    text = QUICK + "launcher: local\nstrategies: [ddp, {zero: {stage: 2}}]\n"
    suite = write_suite(tmp_path, text, "prepared.yaml")
    assert distbench("prepare", str(suite)).returncode == 0
    # links to checkouts that are gone may lie in it
    cache = shutil.copytree(cache_folder(), tmp_path / "cache", symlinks=True)
    damaged = [*cache.glob("allocator/*.so"), *cache.glob("ops/*/cpu/deepspeed_shm_comm/*.so")]
    for library in damaged:
        truncate(library)
    finished = run_suite(text, DISTBENCH_CACHE=str(cache))
    assert [case["status"] for case in finished.cases.values()] == ["measured", "measured"]
    assert finished.record("ddp")["values"]["memory_peak"] > 0

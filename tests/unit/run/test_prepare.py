"""What is built before anything is timed: stale locks, op folders, and the ``prepare`` command."""

import dataclasses
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from distbench import plan
from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.core.machine import Machine
from distbench.core.registry import PLUGIN_PATH_VARIABLE
from distbench.ipc.build_files import BuildEvent, BuildItem, read_items
from distbench.record.run_folder import new_run_id
from distbench.run import Observer
from distbench.run.builds import BuildProgress, build_all
from distbench.strategies._deepspeed.ops import clear_stale_locks
from distbench.suite import load_suite
from distbench.system.machine import ops_folder, package_versions
from support.runs import PLUGINS, QUICK
from support.suites import SuiteText, write_suite

WORK = SuiteText(
    "workload: {mlp: {}}\nbatch: {global_batch_size: 8}\nworld_sizes: [2]\nmetrics: [steptime]\n"
)
MACHINE = Machine("cpu", 2, {"torch": "9", "deepspeed": "9"}, has_libaio=False, has_compiler=True)


@pytest.fixture
def lock(tmp_path) -> Path:
    """Where torch's builder keeps the lock of one op."""
    folder = tmp_path / "deepspeed_shm_comm"
    folder.mkdir()
    return folder / "lock"


@pytest.mark.drill("cache: a stale lock in a folder of an op")
def test_a_build_lock_that_nobody_holds_is_removed_and_told_of(lock):
    lock.touch()
    assert clear_stale_locks(lock.parent.parent) == [lock]
    assert not lock.exists()


def test_a_build_lock_that_a_process_holds_is_left_alone(lock):
    with lock.open("w"):
        assert clear_stale_locks(lock.parent.parent) == []
        assert lock.exists()


def test_a_build_lock_that_is_being_released_is_left_to_its_builder(lock):
    lock.touch()
    with ThreadPoolExecutor() as builder:
        release = builder.submit(lambda: (time.sleep(0.1), lock.unlink()))
        assert clear_stale_locks(lock.parent.parent) == []
        release.result()


def test_ops_of_two_environments_do_not_share_a_folder():
    zero = registry.create_plugin("strategies", PluginChoice("zero"))
    assert zero.extensions_folder("cpu") != zero.extensions_folder("cuda")


def items(folder: Path, text: str, machine: Machine = MACHINE, work: str = WORK) -> list[BuildItem]:
    """What the preparation of a suite is asked to build."""
    (folder / "suite.yaml").write_text(f"{work}launcher: pretend\n{text}")
    suite = load_suite(folder / "suite.yaml")
    assert build_all(suite, plan.make_plan(suite, machine), folder, new_run_id(), Observer()) == {}
    return read_items(folder / "prepare" / "0" / "prepare.json")


def test_each_case_for_which_a_strategy_builds_something_else_is_prepared(tmp_path, monkeypatch):
    monkeypatch.setenv(PLUGIN_PATH_VARIABLE, PLUGINS)
    built = items(tmp_path, "strategies: [compiled]\naxes: {optimizer.name: [adamw, sgd]}\n")
    asked = [item.data["optimizer"]["name"] for item in built if item.kind == "strategy"]
    assert asked == ["adamw", "sgd"]


@pytest.mark.parametrize(("device", "built"), [("cpu", ["metric memory"]), ("cuda", [])])
def test_an_allocator_that_counts_is_built_for_cpus_alone(tmp_path, device, built):
    machine, work = dataclasses.replace(MACHINE, device=device), WORK.replace("steptime", "steptime, memory")
    asked = items(tmp_path, "strategies: [ddp]\n", machine, work)
    assert [item.name for item in asked if item.kind == "metric"] == built


class MessageLog(Observer):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def test_what_takes_long_is_told_by_its_name_once_and_what_does_not_is_not():
    now, notes = [0.0], MessageLog()
    progress = BuildProgress(notes, 2, lambda: now[0])
    progress.process_started()
    for item in ("initial weights of mlp (a)", "op cpu_adam"):
        progress.handle(BuildEvent(item))
        for passed in (1.0, 2.0, 30.0, 30.0):
            now[0] += passed
            progress.warn_if_slow()
            if item != "op cpu_adam":
                break
        progress.handle(BuildEvent(item, ended=True))
    assert notes.said == ["building op cpu_adam, once on this machine (more than 5 s)"]


def test_what_several_strategies_need_is_built_once(tmp_path):
    built = items(tmp_path, "strategies: [{zero: {stage: [1, 2], optimizer_kernel: [torch, deepspeed]}}]\n")
    assert [item.name for item in built if item.kind == "strategy"] == [
        "DeepSpeed's C++ ops deepspeed_shm_comm",
        "DeepSpeed's C++ ops deepspeed_shm_comm, cpu_adam",
    ]


@pytest.mark.train
def test_prepare_builds_what_a_run_then_finds_and_mends_it(distbench, tmp_path):
    suite = write_suite(tmp_path, QUICK + "launcher: kept\nstrategies: [ddp]\n")
    cache = {"DISTBENCH_CACHE": str(tmp_path / "cache")}
    done = distbench("prepare", str(suite), **cache)
    assert done.returncode == 0, done.stderr
    (library,) = (tmp_path / "cache").glob("allocator/*.so")
    size = library.stat().st_size
    os.truncate(library, size // 2)
    done = distbench("prepare", str(suite), **cache)
    assert (done.returncode, library.stat().st_size) == (0, size), done.stderr
    assert f"rebuilt {library}, because the cached copy was damaged (" in done.stderr


@pytest.mark.train
def test_ranks_take_an_op_that_was_built_as_it_is(run_suite, tmp_path, monkeypatch):
    """DeepSpeed would ask ninja first, before that what processor this is, and compile to probe it."""
    asked, tools = tmp_path / "asked", tmp_path / "bin"
    tools.mkdir()
    for tool in ("ninja", "cc", "gcc", "c++", "g++"):
        if real := shutil.which(tool):
            (tools / tool).write_text(f'#!/bin/sh\necho "{tool} $WORLD_SIZE" >> {asked}\nexec {real} "$@"\n')
            (tools / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    done = run_suite(QUICK + "strategies: [{zero: {stage: 1}}]\n")
    assert done.code == 0, done.errors
    uses = [line.split() for line in asked.read_text().splitlines()]
    assert ["ninja", "1"] in uses, "the process that prepares"
    assert not [use for use in uses if use[1:] == ["2"]], "no rank"
    built = ops_folder(sys.prefix, package_versions(), "cpu") / "deepspeed_shm_comm" / "build.ninja"
    assert " -g " not in built.read_text()


@pytest.mark.train
def test_without_a_compiler_memory_is_absent_with_the_reason(distbench, tmp_path):
    suite = write_suite(tmp_path, QUICK + "strategies: [ddp]\n")
    nowhere = {"DISTBENCH_CACHE": str(tmp_path / "cache"), "CXX": "no-such-compiler"}
    done = distbench("run", str(suite), "--out", str(tmp_path / "out"), "--json", **nowhere)
    assert done.returncode == 0, done.stderr
    assert '"memory_peak": "exact bytes on a CPU need a C++ compiler' in done.stdout


def test_a_login_node_prepares_for_as_many_gpus_as_the_suite_asks_for(distbench, tmp_path):
    suite = write_suite(tmp_path, QUICK + "launcher: pretend\nstrategies: [ddp]\n")
    done = distbench("prepare", str(suite), "--device", "cuda")
    assert (done.returncode, "preparing for 2 GPUs on another machine" in done.stderr) == (0, True), (
        done.stderr
    )
    refused = distbench("run", str(suite), "--device", "cuda", "--out", str(tmp_path))
    assert (refused.returncode, "no CUDA device on this machine" in refused.stderr) == (2, True)


@pytest.mark.train
@pytest.mark.deep
def test_what_deepspeed_builds_only_where_it_sees_a_gpu_is_said(distbench, tmp_path):
    suite = tmp_path / "suite.yaml"
    zero = "zero: {stage: 1, optimizer_kernel: [torch, deepspeed]}"
    suite.write_text(QUICK + f"launcher: kept\nstrategies: [ddp, {zero}]\n")
    done = distbench("prepare", str(suite), "--device", "cuda", CUDA_VISIBLE_DEVICES="")
    (failed,) = [line for line in done.stderr.splitlines() if "DeepSpeed compiles it" in line]
    assert "DS_BUILD_FUSED_ADAM=1 TORCH_CUDA_ARCH_LIST=" in failed
    assert done.returncode == 1
    text = suite.read_text().replace(", deepspeed]", "]")
    suite.write_text(text)
    assert distbench("prepare", str(suite), "--device", "cuda", CUDA_VISIBLE_DEVICES="").returncode == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--engine", "accelerate"], "has nothing to build; install it in distbench's checkout"),
        (["--engine", "native"], "has nothing to build; engines that are built: horovod"),
        (["--engine", "horovd"], "unknown engine 'horovd': did you mean 'horovod'?"),
        (["suite.yaml", "--engine", "horovod"], "--engine: leave out the suite and its options"),
        (["--engine", "horovod", "--world-sizes", "2"], "--engine: leave out the suite and its options"),
        ([], "prepare: give a suite file, or --engine NAME"),
    ],
)
def test_what_can_not_be_prepared_is_a_usage_error(distbench, words, told):
    done = distbench("prepare", *words)
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr


def test_an_engine_that_can_not_run_here_is_an_error_of_its_preparation(distbench):
    done = distbench("prepare", "--engine", "horovod", "--device", "cuda")
    assert done.returncode == 1
    assert "ready in " not in done.stderr
    # without torch, that is the reason
    reasons = ("engine horovod is built for CPUs (gloo)", "torch is not installed")
    assert [
        line for line in done.stderr.splitlines() if "error: " in line and any(r in line for r in reasons)
    ]


@pytest.mark.train
def test_an_engine_is_built_without_a_suite(distbench, tmp_path):
    """Up to the compiler, which is missing: the build itself takes minutes."""
    place = {"DISTBENCH_CACHE": str(tmp_path / "cache"), "CXX": "no-such-compiler"}
    done = distbench("prepare", "--engine", "horovod", **place)
    assert done.returncode == 1
    assert (
        "engine horovod: engine horovod builds Horovod 0.28.1, but no C++ compiler was found" in done.stderr
    )

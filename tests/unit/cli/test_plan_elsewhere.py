"""``plan --on TYPE:NODESxGPUS``: a plan for GPUs that are not at hand, with what theory says of each case."""

import json
import re
from pathlib import Path

import pytest

from distbench.cli.described_machine import read_machine_file
from distbench.system.gpu_data_sheets import DATA_SHEETS
from distbench.system.gpu_types import GPU_TYPES
from support.runs import call

SUITE = """
workload: {transformer: {preset: 1b, seq_len: 128}}
data: synthetic
batch: {per_device_batch_size: 1}
precision: PRECISION
strategies: [ddp, {zero: {stage: 3}}]
"""


@pytest.fixture
def suite(tmp_path):
    def write(precision: str = "bf16", more: str = "") -> str:
        file = tmp_path / "suite.yaml"
        file.write_text(SUITE.replace("PRECISION", precision) + more)
        return str(file)

    return write


def planned(file: str, where: str, *options: str) -> dict[str, dict]:
    done = call("plan", file, "--on", where, "--json", *options)
    assert done.returncode == 0, done.stderr
    return {each["case"]: each for each in json.loads(done.stdout)["cases"]}


def test_world_sizes_are_those_of_the_cluster(suite):
    cases = planned(suite(), "h100-sxm:4x8")
    assert {each["world_size"] for each in cases.values()} == {1, 2, 4, 8, 16, 32}
    assert all(each["status"] == "planned" for each in cases.values())


def test_states_and_traffic_are_those_of_theory(suite):
    cases = planned(suite(), "h100-sxm:2x8", "--world-sizes", "16")
    ddp, zero3 = cases.values()
    # weights, gradients and two moments in fp32: 16 bytes; the copies in bf16 are not kept
    parameters = ddp["states_bytes"] / 16
    assert parameters == pytest.approx(1.2e9, rel=0.1)
    assert zero3["states_bytes"] == pytest.approx(18 * parameters / 16)
    # its gradients, in fp32
    assert ddp["traffic_bytes"] == pytest.approx(4 * parameters)


def test_what_cannot_fit_is_unsupported_with_the_memory_of_the_gpu(suite):
    ddp, zero3 = planned(suite("fp16"), "t4:8", "--world-sizes", "8").values()
    assert ddp["status"] == "unsupported"
    assert "a GPU of type t4 has 16.0 GiB of memory" in ddp["reason"]
    assert ddp["states_bytes"] is None
    assert zero3["status"] == "planned"


def test_an_older_gpu_does_not_compute_in_bf16(suite):
    cases = planned(suite("bf16"), "v100-32gb:8", "--world-sizes", "8")
    assert cases
    for each in cases.values():
        assert "bf16 needs GPUs of compute capability 8.0 (Ampere) or newer" in each["reason"]


def test_the_table_says_what_its_columns_are_and_what_is_assumed(suite):
    shown = call("plan", suite(), "--on", "h200:8", "--world-sizes", "8")
    assert shown.returncode == 0, shown.stderr
    text = " ".join(shown.stdout.split())
    assert "machine: 1 node with 8 h200 GPUs each, as given" in text
    assert "STATES: model states of a rank by theory" in text
    assert "CASE ID STATES TRAFFIC STATUS" in text


def test_a_trace_needs_torch(suite):
    # which is not installed where tests without the mark train run
    done = call("plan", suite(), "--on", "h200:8", "--trace")
    assert done.returncode == 2
    assert (
        "--trace (or limits.predicted_memory) runs a step of each case in torch, which is not" in done.stderr
    )


def test_the_model_of_a_user_has_no_theory_and_no_zero(suite, tmp_path):
    file = tmp_path / "own.yaml"
    model = 'user: {model: "small:Small", length: 32}'
    text = SUITE.replace("PRECISION", "fp32").replace("transformer: {preset: 1b, seq_len: 128}", model)
    file.write_text(text)
    cases = planned(str(file), "h100-sxm:8", "--world-sizes", "8")
    assert len(cases) == 2
    assert all(each["states_bytes"] is each["traffic_bytes"] is None for each in cases.values())


MISTAKES = {
    "h100:8x8": "unknown type of GPU 'h100'",
    "h100": "neither a launcher nor a type of GPU; use h100-sxm or h100-pcie",
    "h100-sxm:٣": "expected TYPE:NODESxGPUS",
    "h100-sxm": "expected TYPE:NODESxGPUS, such as h100-sxm:8x8",
    "h100-sxm:": "expected TYPE:NODESxGPUS",
    "h100-sxm:8x": "expected TYPE:NODESxGPUS",
    "h100-sxm:eight": "expected TYPE:NODESxGPUS",
    "h100-sxm:0x8": "0 GPUs; must be from 1",
    "h100-sxm:-8": "expected TYPE:NODESxGPUS",
    "h100-sxm:8x8x8": "expected TYPE:NODESxGPUS",
    "h100-sxm:9999999": "must be from 1 to 1,000,000",
    ":8": "unknown type of GPU ''",
}


@pytest.mark.parametrize("where", MISTAKES)
def test_a_mistake_names_the_option_and_the_form(suite, where):
    done = call("plan", suite(), "--on", where)
    assert done.returncode == 2
    assert "--on = " in done.stderr
    assert MISTAKES[where] in done.stderr


def test_a_file_describes_a_machine(suite, tmp_path):
    machine = tmp_path / "machine.yaml"
    machine.write_text("gpu: ours\ngpus_per_node: 4\nnodes: 2\nmemory: 16GiB\ncompute_capability: 9.0\n")
    ddp, zero3 = planned(suite(), str(machine), "--world-sizes", "8").values()
    assert "a GPU of type ours has 16.0 GiB of memory" in ddp["reason"]
    assert zero3["status"] == "planned"
    machine.write_text("gpu: h100-sxm\ngpus_per_node: 4\n")
    assert {each["world_size"] for each in planned(suite(), str(machine)).values()} == {1, 2, 4}


FILES = {
    "": "the file is empty",
    "[1]": "expected a mapping",
    "gpu: h100-sxm": "gpus_per_node",
    "gpu: h100-sxm\ngpus_per_node: 0": "machine.yaml:2: gpus_per_node = 0: must be at least 1",
    "gpu: h100-smx\ngpus_per_node: 8": "machine.yaml:1: gpu = 'h100-smx': no type that distbench knows",
    "gpu: ours\ngpus_per_node: 8\nmemory: 80GiB": "or give memory and compute_capability with it",
    "gpu: h100-sxm\ngpus_per_node: 8\nmemory: much": "machine.yaml:3: memory = 'much': expected a size",
    "gpu: h100-sxm\ngpus_per_node: 8\nmemory: 80": "machine.yaml:3: memory",
    "gpu: h100-sxm\ngpus: 8": "machine.yaml:2: gpus = 8: unknown key; did you mean 'gpu'?",
    "gpu: h100-sxm\ngpus_per_node: 8\ncores: -1": "machine.yaml:3: cores = -1: must be at least 1",
    "gpu: h100-sxm\ngpus_per_node: 8\ncompute_capability: new": "machine.yaml:3: compute_capability",
    "gpu: h100-sxm\ngpus_per_node: 8\ninside: fast": "machine.yaml:3: inside = 'fast': expected a bandwidth",
    "gpu: h100-sxm\ngpus_per_node: 8\ninside: 450": "machine.yaml:3: inside",
    "gpu: h100-sxm\ngpus_per_node: 8\ninside: 450GB": "such as 450GB/s or 400Gb/s (B: bytes, b: bits)",
    "gpu: h100-sxm\ngpus_per_node: 8\ninside: 450 gb/s": "machine.yaml:3: inside = '450 gb/s'",
    "gpu: h100-sxm\ngpus_per_node: 8\nbetween: 0Gb/s": "machine.yaml:3: between = '0Gb/s': expected a bandw",
    "gpu: h100-sxm\ngpus_per_node: 8\nbetween: -1Gb/s": "machine.yaml:3: between = '-1Gb/s'",
    "gpu: h100-sxm\ngpus_per_node: 8\nbetween: [1]": "machine.yaml:3: between",
    "gpu: h100-sxm\ngpus_per_node: 8\nbeetween: 1Gb/s": "machine.yaml:3: beetween = '1Gb/s': unknown key",
    "gpu: mi300\ngpus_per_node: 8": "machine.yaml:1: gpu = 'mi300': no type that distbench knows",
    "gpu: [": "not YAML",
}


@pytest.mark.parametrize("text", FILES)
def test_a_mistake_in_the_file_of_a_machine_has_its_line(suite, tmp_path, text):
    machine = tmp_path / "machine.yaml"
    machine.write_text(text)
    done = call("plan", suite(), "--on", str(machine))
    assert done.returncode == 2
    assert FILES[text] in done.stderr
    assert "workload" not in done.stderr


def test_a_missing_file_of_a_machine_is_named(suite):
    done = call("plan", suite(), "--on", "nowhere.yaml")
    assert done.returncode == 2
    assert "nowhere.yaml: no such file" in done.stderr


def test_a_suite_for_cpus_is_planned_for_no_gpus(suite):
    done = call("plan", suite(more="device: cpu\n"), "--on", "h100-sxm:8")
    assert done.returncode == 2
    assert "the machine that is described has GPUs" in done.stderr


def test_nodes_stand_in_one_place(suite):
    done = call("plan", suite(), "--on", "h100-sxm:8x8", "--nodes", "2")
    assert done.returncode == 2
    assert "leave out --nodes and --gpus-per-node" in done.stderr


def test_gpus_that_are_not_at_hand_launch_nothing(suite):
    done = call("plan", suite(), "--on", "h100-sxm:8", "--commands")
    assert done.returncode == 2
    assert "--on and --gpus-per-node about others" in done.stderr


def test_gpus_without_a_compute_capability_are_planned_for(suite):
    for precision in ("bf16", "{compute: bf16, float8: tensorwise}"):
        cases = planned(suite(precision), "mi300x:8", "--world-sizes", "8")
        assert {each["status"] for each in cases.values()} == {"planned"}


def test_a_file_sets_the_bandwidth_of_links(tmp_path):
    file = tmp_path / "machine.yaml"
    file.write_text("gpu: mi300x\ngpus_per_node: 8\nnodes: 2\ninside: 64GB/s\nbetween: 400Gb/s\n")
    machine = read_machine_file(file)
    assert (machine.inside, machine.between) == (64e9, 50e9)
    assert (machine.gpu_type, machine.compute_capability, machine.devices) == ("mi300x", None, 16)
    file.write_text("gpu: mi300x\ngpus_per_node: 8\n")
    usual = read_machine_file(file)
    assert usual.inside is usual.between is None


def test_the_page_has_every_type():
    page = (Path(__file__).parents[3] / "docs" / "planning.md").read_text()
    rows = re.findall(r"^\| `(.+)` \| (\d+) GB \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) > 20
    assert rows == [(each.name, str(each.memory >> 30), _rates_text(each)) for each in GPU_TYPES.values()]


def _rates_text(gpu):
    sheet, unknown = DATA_SHEETS[gpu.name], "–"
    rates = (
        *((sheet.peak.fp16, 1e12), (sheet.peak.float8, 1e12), (sheet.memory_bandwidth, 1e9)),
        *((sheet.inside, 1e9), (sheet.network, 1e9 / 8)),
    )
    shown = [unknown if rate is None else f"{rate / unit:.4g}" for rate, unit in rates]
    return " | ".join([str(gpu.compute_capability or unknown), *shown, sheet.source])

"""``init --on``: a suite for GPUs that are not at hand, with the strategies that may be best there."""

import json

import pytest

from distbench.suite import load_suite

MACHINE = """
gpu: own-card
gpus_per_node: 4
nodes: 2
memory: MEMORY
compute_capability: 9.0
"""


@pytest.fixture
def planned(command, tmp_path):
    """Write a suite for a machine; return it, and the cases of its plan there."""

    def write(where: str, *options: str) -> tuple[str, list[dict]]:
        file = tmp_path / "mine.yaml"
        code, output, errors = command("init", str(file), "--on", where, *options)
        assert code == 0, errors
        assert f"distbench plan {file} --predict --on {where}" in output
        code, output, errors = command("plan", str(file), "--predict", "--on", where, "--json")
        assert code == 0, errors
        return file.read_text(), json.loads(output)["cases"]

    return write


def test_all_that_is_proposed_can_run_on_nodes_of_the_machine(planned):
    text, cases = planned("h100-sxm:4x8", "--model", "8b")
    assert {each["world_size"] for each in cases} == {8, 16, 32}
    assert all(each["status"] == "planned" and not each["reason"] for each in cases)
    assert all(each["predicted"]["fits"] != "no" for each in cases)
    assert "Proposed for 4 nodes of 8 h100-sxm GPUs with 80.0 GiB of memory each" in text
    assert "450 GB/s inside a node and 50 GB/s between nodes" in " ".join(text.replace("#", "").split())
    # 8.03e9 parameters x 16 bytes do not fit
    assert (
        "# - ddp: the model does not fit: the model states of 8,030,261,248 parameters need 120 GiB" in text
    )
    assert "ddp" not in {each["strategy"] for each in cases}


def test_tensor_parallelism_stays_inside_a_node_and_pipelines_span_nodes(planned, tmp_path):
    _, cases = planned("h100-sxm:4x8", "--model", "8b")
    strategies = load_suite(tmp_path / "mine.yaml").tree["strategies"]
    meshes = [
        (name, options["mesh"])
        for each in strategies
        if isinstance(each, dict)
        for name, options in each.items()
        if "mesh" in options
    ]
    assert meshes == [
        ("fsdp", {"tp": 2}),
        ("fsdp", {"tp": 8}),
        ("pp", {"dp_shard": 8}),
        ("pp", {"tp": 8}),
    ]
    pipelines = {
        (each["strategy"], each["world_size"]) for each in cases if each["strategy"].startswith("pp")
    }
    assert pipelines == {(name, size) for name in ("pp+fsdp8", "pp+tp8+sp+lp") for size in (16, 32)}
    hybrid = {each["world_size"] for each in cases if each["strategy"] == "fsdp-hybrid"}
    assert hybrid == {16, 32}


def test_cases_that_cannot_fit_are_left_out_with_the_bytes_that_they_need(planned, tmp_path, command):
    text, cases = planned("a100-40gb:8", "--model", "3b")
    # the same numbers as the plan of a suite that does not leave them out
    whole = tmp_path / "all.yaml"
    whole.write_text(text.partition("exclude:")[0])
    _, output, _ = command("plan", str(whole), "--predict", "--on", "a100-40gb:8", "--json", "--only", "fsdp")
    peaks = {
        each["case"]: each["predicted"]["peak_bytes"]["value"] / 2**30
        for each in json.loads(output)["cases"]
        if each["predicted"]["fits"] == "no"
    }
    assert [*peaks] == [f"fsdp/ws8/mb{size}/bf16/activation_checkpointing=none" for size in (2, 4)]
    least, most = (f"{peak:.1f} GiB" for peak in peaks.values())
    assert f"# {least} to {most} of tensors on a rank, of 40.0 GiB on a GPU\n" in text
    assert peaks.keys().isdisjoint(each["case"] for each in cases)


def test_nothing_is_recomputed_where_it_fits_without_unless_memory_is_the_goal(planned, tmp_path):
    _, cases = planned("h200:8", "--model", "1b")
    assert {each["case"].rpartition("=")[2] for each in cases if each["strategy"] == "fsdp"} == {"none"}
    (tmp_path / "mine.yaml").unlink()
    _, cases = planned("h200:8", "--model", "1b", "--goal", "memory")
    assert {each["case"].rpartition("=")[2] for each in cases if each["strategy"] == "fsdp"} == {
        "none",
        "full",
    }
    assert {each["strategy"] for each in cases} == {"fsdp", "zero3", "fsdp+tp2+sp+lp", "fsdp+tp8+sp+lp"}


def test_for_memory_nothing_is_replicated(planned):
    _, cases = planned("h100-sxm:2x8", "--model", "8b", "--goal", "memory", "--devices", "1,8,16")
    assert {each["strategy"] for each in cases} == {
        "fsdp",
        "zero3",
        "fsdp+tp2+sp+lp",
        "fsdp+tp8+sp+lp",
        "pp+fsdp8",
        "pp+tp8+sp+lp",
    }


def test_for_memory_one_gpu_has_nothing_to_shard(planned):
    _, cases = planned("h200:2x8", "--model", "1b", "--goal", "memory", "--devices", "1,16")
    assert {each["strategy"] for each in cases if each["world_size"] == 1} == {"single", "fsdp", "zero3"}
    assert not [each for each in cases if each["strategy"] == "fsdp-hybrid"]


@pytest.mark.parametrize(
    ("where", "sizes", "samples"),
    [
        ("h100-sxm:100x8", [8, 16, 32, 64, 128, 256, 512], 8 * 512),
        ("h100-sxm:18x4", [4, 8, 16, 32, 64], 8 * 64),
        ("h100-sxm:3x8", [8, 16, 24], 8 * 24),
        ("h100-sxm:5x8", [8, 16, 32, 40], 16 * 40),
    ],
)
def test_a_gpu_gets_few_samples_on_any_number_of_nodes(planned, tmp_path, where, sizes, samples):
    text, cases = planned(where, "--model", "1b")
    suite = load_suite(tmp_path / "mine.yaml").tree
    assert suite["world_sizes"] == sizes
    assert suite["batch"]["global_batch_size"] == samples
    micro_batches = [each["pp"]["micro_batches"] for each in suite["strategies"] if "pp" in each]
    nodes, per_node = map(int, where.partition(":")[2].split("x"))
    assert set(micro_batches) == {samples // per_node}
    assert {each["world_size"] for each in cases} == set(sizes)
    most = nodes * per_node
    assert (f"# Without all {most:,} GPUs" in text) == (most not in sizes)


def test_a_number_of_devices_that_was_asked_for_stays_with_what_it_makes_of_the_batch(planned, tmp_path):
    text, _ = planned("h100-sxm:100x8", "--model", "1b", "--devices", "512,800")
    suite = load_suite(tmp_path / "mine.yaml").tree
    assert suite["world_sizes"] == [512, 800]
    assert suite["batch"]["global_batch_size"] == 64 * 800
    assert "# The batch is a multiple of all of them: 64 samples on each of 800 GPUs." in text
    (tmp_path / "mine.yaml").unlink()
    text, _ = planned("h100-sxm:100x8", "--model", "1b", "--devices", "800")
    assert load_suite(tmp_path / "mine.yaml").tree["batch"]["global_batch_size"] == 8 * 800
    assert "# The batch is" not in text


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("rtx-4090:1", "Proposed for 1 node of 1 rtx-4090 GPU with 24.0 GiB of memory."),
        (
            "h100-sxm:2x1",
            "2 nodes of 1 h100-sxm GPU with 80.0 GiB of memory each. A GPU sends 50 GB/s between",
        ),
        (
            "h100-sxm:2",
            "1 node of 2 h100-sxm GPUs with 80.0 GiB of memory each. A GPU sends 450 GB/s inside a node.",
        ),
    ],
)
def test_only_links_that_the_machine_has_are_told(planned, where, said):
    text = " ".join(planned(where, "--model", "gpt2-small")[0].replace("#", "").split())
    assert said in text
    assert ("GB/s" in text) == ("GB/s" in said)


def test_without_a_model_it_is_the_one_that_suits_the_gpus(planned, tmp_path):
    planned("h100-sxm:8")
    assert load_suite(tmp_path / "mine.yaml").work["workload"]["transformer"]["preset"] == "1b"


def test_numbers_of_devices_are_those_that_were_asked_for(planned):
    _, cases = planned("h100-sxm:2x8", "--devices", "1,4,16", "--model", "1b")
    sizes = {each["strategy"]: set() for each in cases}
    for each in cases:
        sizes[each["strategy"]].add(each["world_size"])
    assert sizes["single"] == {1}
    assert sizes["fsdp"] == {1, 4, 16}
    assert sizes["fsdp+tp2+sp+lp"] == {4, 16}


def test_gpus_without_bf16_train_in_fp16(planned, tmp_path):
    text, _ = planned("v100-32gb:4")
    assert load_suite(tmp_path / "mine.yaml").tree["precision"] == "fp16"
    assert "Memory unknown: precision.loss_scale" in " ".join(text.replace("#", "").split())


def test_a_machine_of_a_file_decides_what_fits(planned, tmp_path):
    def strategies(memory: str) -> set[str]:
        (tmp_path / "machine.yaml").write_text(MACHINE.replace("MEMORY", memory))
        (tmp_path / "mine.yaml").unlink(missing_ok=True)
        _, cases = planned(str(tmp_path / "machine.yaml"), "--model", "3b")
        assert {each["world_size"] for each in cases} == {4, 8}
        return {each["strategy"] for each in cases}

    assert strategies("192GiB") - strategies("40GiB") == {"ddp"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--on", "h1000:8"), "unknown type of GPU 'h1000'"),
        (("--on", "h100-sxm:8by8"), "expected TYPE:NODESxGPUS"),
        (("--on", "slurm"), "--on = 'slurm': a launcher, whose GPUs are not known here"),
        (("--on", "nowhere.yaml"), "nowhere.yaml: no such file"),
        (("--on", "h100-sxm:2x8", "--devices", "17"), "--devices: 17 are more than the 16 of --on"),
        (("--on", "h100-sxm:2x8", "--devices", "12"), "use a multiple of 8"),
        (("--on", "h100-sxm:8", "--goal", "gate"), "proposes strategies for throughput and memory"),
        (("--on", "h100-sxm:8", "--goal", "fastest"), "--goal = 'fastest'"),
        (("--on", "h100-sxm:8", "--model", "huge"), "--model = 'huge'"),
        (("--on", "h100-sxm:8", "--model", "mine:Model"), "use a preset of the transformer (tiny,"),
        (("--on", "h100-sxm:8", "--from", "ds_config.json"), "--on: leave it out beside --from"),
        (("--on", "t4:2", "--model", "70b"), "fits 70b there; name a smaller preset with --model"),
    ],
)
def test_wrong_input_is_named_and_nothing_is_written(command, tmp_path, options, said):
    file = tmp_path / "mine.yaml"
    code, _, errors = command("init", str(file), *options)
    assert code == 2
    assert said in errors
    assert not file.exists()

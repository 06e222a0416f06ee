"""``plan --what-if``: what the fastest cases would be with other memory, links and numbers of nodes."""

import json
import re

import pytest

SUITE = """
workload: {transformer: {preset: 8b, seq_len: 4096}}
data: synthetic
batch: {global_batch_size: 32, micro_batch_size: 1}
precision: bf16
strategies: [fsdp, {fsdp: {mesh: {tp: 8}}}, {zero: {stage: 1}}]
world_sizes: [8, 16]
"""
# 6.5e9 parameters: 97 GiB of states
LARGE = """
workload:
  huggingface:
    model_type: llama
    seq_len: 4096
    vocab_size: 128256
    config: {hidden_size: 4096, intermediate_size: 14336, num_hidden_layers: 25, num_attention_heads: 32,
      num_key_value_heads: 8, hidden_act: silu, tie_word_embeddings: false, head_dim: 128,
      attention_bias: false, mlp_bias: false}
data: synthetic
batch: {global_batch_size: 32, micro_batch_size: 1}
precision: bf16
strategies: [ddp, fsdp, single]
world_sizes: [8]
"""
MACHINE = "gpu: h100-sxm\ngpus_per_node: 8\nnodes: 2\n"


@pytest.fixture
def plan(command, tmp_path):
    (tmp_path / "suite.yaml").write_text(SUITE)

    def told(*options: str, on: str = "h100-sxm:2x8") -> dict:
        code, output, errors = command(
            "plan", str(tmp_path / "suite.yaml"), "--predict", "--json", "--on", on, *options
        )
        assert code == 0, errors
        return json.loads(output)

    return told


def tokens(predicted: dict) -> float:
    return predicted["tokens_per_s"]["value"]


def variation(case: dict, varied: str, value: float) -> dict:
    (found,) = [
        each
        for each in case["variations"]
        if each["varied"] == varied and each["value"] == pytest.approx(value)
    ]
    return found


def test_the_case_with_the_most_tokens_on_each_number_of_devices_is_varied(plan):
    told = plan("--what-if", "--set", "batch.global_batch_size=512")
    best = {}
    for each in told["cases"]:
        if each["predicted"]["fits"] != "no":
            known = best.get(each["world_size"])
            if known is None or tokens(each["predicted"]) > tokens(known["predicted"]):
                best[each["world_size"]] = each
    assert [each["case_id"] for each in told["what_if"]] == [best[8]["case_id"], best[16]["case_id"]]
    # zero1 would be faster, but does not fit
    large = [each for each in told["cases"] if each["strategy"] == "zero1"]
    assert {each["predicted"]["fits"] for each in large} == {"no"}
    assert all(tokens(each["predicted"]) > tokens(best[each["world_size"]]["predicted"]) for each in large)


def test_links_are_varied_as_a_machine_with_such_links_is_predicted(plan, tmp_path):
    case = plan("--what-if", "--only", "fsdp+tp8", "--world-sizes", "16")["what_if"][0]
    for key, value in (("inside", 225e9), ("inside", 900e9), ("between", 25e9), ("between", 100e9)):
        (tmp_path / "machine.yaml").write_text(f"{MACHINE}{key}: {value / 1e9:g}GB/s\n")
        (same,) = plan("--only", "fsdp+tp8", "--world-sizes", "16", on=str(tmp_path / "machine.yaml"))[
            "cases"
        ]
        found = variation(case, key, value)
        assert found["predicted"]["step_s"] == same["predicted"]["step_s"]
        assert found["change"] == pytest.approx(tokens(same["predicted"]) / tokens(case["predicted"]) - 1)
    changes = [variation(case, "inside", rate)["change"] for rate in (225e9, 900e9)]
    assert changes[0] < -0.05 < 0.05 < changes[1]


def test_nodes_are_varied_with_the_same_samples_of_a_step(plan):
    case = plan("--what-if", "--only", "fsdp", "--world-sizes", "16")["what_if"][0]
    assert [each["value"] for each in case["variations"] if each["varied"] == "nodes"] == [1, 4]
    for nodes in (1, 4):
        (same,) = plan("--only", "fsdp", "--world-sizes", str(8 * nodes), on=f"h100-sxm:{nodes}x8")["cases"]
        found = variation(case, "nodes", nodes)
        assert found["world_size"] == 8 * nodes
        assert found["predicted"]["step_s"] == same["predicted"]["step_s"]
        assert found["predicted"]["peak_bytes"] == same["predicted"]["peak_bytes"]


def test_memory_decides_whether_a_case_fits_and_not_how_fast_it_is(plan):
    case = plan("--what-if", "--only", "zero1", "--world-sizes", "8")["what_if"][0]
    assert case["predicted"]["fits"] == "no"
    small, large = variation(case, "memory", 40 * 2**30), variation(case, "memory", 141 * 2**30)
    assert small["predicted"] is None
    assert "GPU of type h100-sxm has 40.0 GiB of memory" in small["reason"]
    assert large["predicted"]["fits"] == "yes"
    assert large["change"] == 0
    # the memory that it has is no variation
    assert sum(each["varied"] == "memory" for each in case["variations"]) == 2


def test_more_memory_is_the_answer_for_a_named_case_whose_states_do_not_fit(command, plan, tmp_path):
    (tmp_path / "suite.yaml").write_text(LARGE)
    (case,) = plan("--what-if", "--only", "ddp", on="h100-sxm:1x8")["what_if"]
    assert case["predicted"]["fits"] == "no"
    # links are no answer
    assert {each["varied"] for each in case["variations"]} == {"memory", "nodes"}
    assert "the model does not fit" in variation(case, "nodes", 2)["reason"]
    large = variation(case, "memory", 141 * 2**30)
    why = large["predicted"]["peak_reason"]
    assert large["reason"] is None
    assert large["predicted"]["fits"] != "no"
    assert large["predicted"]["step_s"]
    file = str(tmp_path / "suite.yaml")
    _, output, _ = command("plan", file, "--on", "h100-sxm:1x8", "--what-if", "--only", "ddp")
    rows = [re.split(r"  +", line.strip()) for line in output[output.index("WHAT IF") :].splitlines()]
    fits = {row[0]: row[1] for row in rows if len(row) > 4}
    assert fits["as given (80.0 GiB, 1 node)"] == fits["40.0 GiB of memory"] == fits["2 nodes"] == "no"
    # the states fit there; no formula has the rest
    assert fits["141 GiB of memory"] == "–"
    told = f"ddp with 141 GiB of memory: its model states fit, but no formula has its peak: {why}"
    assert told in " ".join(output.split())
    # only cases that are named
    assert [each["case"].partition("/")[0] for each in plan("--what-if", on="h100-sxm:1x8")["what_if"]] == [
        "fsdp"
    ]


def test_named_cases_that_no_memory_helps_are_not_to_be_named_again(command, tmp_path):
    (tmp_path / "suite.yaml").write_text(SUITE.replace("[fsdp,", "[dp, fsdp,"))
    code, output, _ = command(
        "plan",
        str(tmp_path / "suite.yaml"),
        *("--on", "h100-sxm:2x8", "--what-if", "--only", "dp", "--world-sizes", "16"),
    )
    assert code == 0
    assert "name cases with --only" not in output
    assert "no case that --only names can run there, even with more memory" in " ".join(output.split())


def test_steps_that_are_unknown_have_the_reason(command, plan, tmp_path):
    place = ("--what-if", "--only", "fsdp", "--world-sizes")
    (case,) = plan(*place, "8", on="mi300x:2x8")["what_if"]
    why = variation(case, "nodes", 2)["predicted"]["step_reason"]
    assert "the bandwidth between nodes is unknown" in why
    file = str(tmp_path / "suite.yaml")
    _, output, _ = command("plan", file, "--on", "mi300x:2x8", *place, "8")
    assert f"fsdp with 2 nodes: {why}" in " ".join(output.split())


def test_without_any_step_there_is_no_table(command, tmp_path):
    file = tmp_path / "suite.yaml"
    # a model that fits with any memory
    file.write_text(SUITE.replace("8b", "1b"))
    (tmp_path / "machine.yaml").write_text(
        "gpu: own-card\ngpus_per_node: 8\nnodes: 2\nmemory: 192GiB\ncompute_capability: 9.0\n"
    )
    code, output, _ = command(
        "plan", str(file), "--on", str(tmp_path / "machine.yaml"), "--what-if", "--only", "fsdp"
    )
    assert code == 0
    assert "LARGEST PART" not in output
    told = " ".join(output.partition("what if:")[2].split())
    assert told.startswith("no case that --only names has a predicted step, as given or varied")
    assert "fsdp as given" in told
    assert "no data sheet of a GPU of type own-card" in told


def test_what_cannot_be_divided_over_more_nodes_has_the_reason(plan):
    case = plan("--what-if", "--only", "fsdp", "--world-sizes", "16", "--set", "batch.global_batch_size=16")
    found = variation(case["what_if"][0], "nodes", 4)
    assert found["predicted"] is found["change"] is None
    assert "global_batch_size = 16 is not divisible by world size 32" in found["reason"]
    assert variation(case["what_if"][0], "nodes", 1)["predicted"]


def test_links_that_a_case_does_not_use_are_not_varied(plan):
    told = plan("--what-if", "--only", "fsdp", "--world-sizes", "8")["what_if"][0]
    assert {each["varied"] for each in told["variations"]} == {"memory", "inside", "nodes"}


def test_the_table_shows_what_the_json_has(command, plan, tmp_path):
    file = str(tmp_path / "suite.yaml")
    code, output, _ = command(
        "plan", file, "--on", "h100-sxm:2x8", "--what-if", "--only", "fsdp", "--world-sizes", "16"
    )
    assert code == 0
    case = plan("--what-if", "--only", "fsdp", "--world-sizes", "16")["what_if"][0]
    lines = output[output.index("WHAT IF") :].splitlines()
    assert lines[1] == case["case"]
    assert lines[2].startswith("  as given (80.0 GiB, 2 nodes)")
    slower = next(line for line in lines if "25 GB/s between nodes" in line)
    assert f"{variation(case, 'between', 25e9)['change']:+.0%}" in slower
    terms = case["predicted"]["step_s_by_term"]
    assert f"compute {terms['compute'] / sum(terms.values()):.0%}" in lines[2]
    small = next(line for line in lines if "40.0 GiB of memory" in line)
    assert re.split(r"  +", small.strip())[1] == variation(case, "memory", 40 * 2**30)["predicted"]["fits"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "name GPUs with --on, such as --on h100-sxm:8x8"),
        (("--gpus-per-node", "8"), "name GPUs with --on"),
        (("--on", "slurm"), "name GPUs with --on"),
        (("--on", "h100-sxm:2x8", "--rates", "mine"), "which can't be varied; leave out --rates"),
    ],
)
def test_without_data_sheets_nothing_is_varied(command, tmp_path, options, said):
    (tmp_path / "suite.yaml").write_text(SUITE)
    code, _, errors = command("plan", str(tmp_path / "suite.yaml"), "--what-if", *options)
    assert code == 2
    assert said in errors

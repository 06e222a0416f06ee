"""``distbench extrapolate``: a measured run on more devices, as a table, as JSON and as a page."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from distbench.core.case import Batch, PluginChoice, PrecisionConfig
from support.probes import probe_of
from support.records import case, measured, stored_run
from support.runs import call

GPU = {"gpu": "NVIDIA H100 80GB HBM3", "gpus": ["NVIDIA H100 80GB HBM3"] * 8}
MODEL = PluginChoice("transformer", {"preset": "1b", "seq_len": 1024})


def gpu_trial(strategy: str, devices: int, step_s: float, environment: dict | None = None):
    of = case(
        strategy,
        devices,
        workload=MODEL,
        data=PluginChoice("synthetic"),
        device="cuda",
        precision=PrecisionConfig(compute="bf16"),
        batch=Batch(8 * devices, 8, 1),
    )
    record = measured(of, 8 * devices * 1024 / step_s, step_s=step_s)
    return dataclasses.replace(record, environment=GPU if environment is None else environment)


def cpu_trial(strategy: str = "ddp", devices: int = 2):
    of = case(strategy, devices, batch=Batch(4 * devices, 4, 1))
    return measured(of, 4 * devices * 128 / 0.05, step_s=0.05)


@pytest.fixture
def runs(tmp_path):
    """Folder with a run on H100s, and one on CPUs."""
    folder = tmp_path / "runs"
    trials = [gpu_trial("fsdp", 4, 0.20), gpu_trial("fsdp", 8, 0.21), gpu_trial("tp", 8, 0.3)]
    stored_run(folder, *trials, run_id="aaaa1111", suite_name="gpus")
    stored_run(folder, cpu_trial(), run_id="bbbb2222", suite_name="cpus")
    return str(folder)


def refused(*arguments: str, code: int = 2) -> str:
    done = call("extrapolate", *arguments)
    assert done.returncode == code, done.stdout
    return " ".join((done.stderr or done.stdout).split())


def test_programs_get_every_number(runs):
    done = call("extrapolate", "aaaa1111", "--to", "1024,16", "--out", runs, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    rows = {(row["case"], row["devices"]): row for row in told["rows"]}
    assert [*rows] == [("fsdp", 4), ("fsdp", 8), ("fsdp", 16), ("fsdp", 1024), ("tp", 8)]
    near, far, farthest = (rows["fsdp", devices] for devices in (8, 16, 1024))
    assert (near["kind"], near["step"], near["efficiency"]) == ("measured", 0.21, 1.0)
    assert (far["kind"], far["source"], far["scaling"]) == ("predicted", "data sheet", "weak")
    assert far["step"] == pytest.approx(0.21 * far["ratio"])
    assert far["tokens_per_s"] == pytest.approx(16 * 8 * 1024 / far["step"])
    assert far["efficiency"] == pytest.approx(1 / far["ratio"])
    assert far["step_low"] < far["step"] < far["step_high"]
    assert farthest["step_high"] / farthest["step"] > far["step_high"] / far["step"]
    assert far["compute_ratio"] == pytest.approx(1.0)
    assert far["communication_ratio"] > 1.0
    assert far["loss_term"] == "communication"
    assert far["bubble_ratio"] is None
    assert [(each["case"], each["devices"]) for each in told["refused"]] == [("tp", 16), ("tp", 1024)]
    assert "tp would grow with the devices" in told["refused"][0]["reason"]


def test_people_read_intervals_and_why_the_rest_is_missing(runs):
    done = call("extrapolate", "aaaa1111", "--to", "16", "--out", runs, COLUMNS="120")
    text = " ".join(done.stdout.split())
    assert re.search(
        r" 16 \d+ \(\d+ to \d+\) ms [\d,]+ [01]\.\d\d \(0\.\d\d to [\d.]+\) communication [\d.]+% yes",
        text,
    )
    assert "fsdp 4 200 ms measured" in text
    assert "nodes of 8 h100-sxm, 400 Gbit/s a GPU between them; --on machine.yaml describes others." in text
    assert re.search(
        r"fsdp: the step on 8 devices, which is measured, extrapolated from 4 is off by -\d\.\d %", text
    )
    assert "tp: not extrapolated to 16: tp would grow with the devices" in text


def test_a_machine_file_sets_the_links(runs, tmp_path):
    file = tmp_path / "slow.yaml"
    file.write_text("gpu: h100-sxm\ngpus_per_node: 8\nnodes: 4\nbetween: 10Gb/s\n")
    options = ("--to", "16", "--out", runs, "--json")
    usual, slow = (
        json.loads(call("extrapolate", "aaaa1111", *options, *on).stdout) for on in ((), ("--on", str(file)))
    )
    steps = [next(row["step"] for row in told["rows"] if row["devices"] == 16) for told in (usual, slow)]
    assert steps[1] > 2 * steps[0]
    assert (
        "nodes of 8 h100-sxm, 10 Gbit/s a GPU between them; measured on nodes of 8 h100-sxm, 400 Gbit/s a "
        "GPU between them."
    ) in " ".join(slow["notes"])
    errors = [[note for note in told["notes"] if " is off by " in note] for told in (usual, slow)]
    assert errors[0] == errors[1] != []


def test_each_row_of_a_narrow_terminal_has_its_devices(runs):
    done = call("extrapolate", "aaaa1111", "--to", "16,64", "--out", runs, COLUMNS="60")
    blocks = re.findall(r"^devices .*$(?:\n.+$)+", done.stdout, re.MULTILINE)
    assert len(blocks) > 1
    for block in blocks:
        assert re.findall(r"^(\S+)", block, re.MULTILINE)[:6] == ["devices", "fsdp", "4", "8", "16", "64"]


@pytest.mark.parametrize(("step_s", "scaling"), [(1e308, "strong"), (1e308, "weak"), (1e-308, "weak")])
def test_a_step_that_no_machine_has_is_left_out_of_every_form(runs, tmp_path, step_s, scaling):
    damaged = measured(gpu_trial("ddp", 8, 1.0).case, step_s=step_s)
    records = [dataclasses.replace(each, environment=GPU) for each in (gpu_trial("ddp", 4, 0.2), damaged)]
    stored_run(Path(runs), *records, run_id="ffff1111", suite_name="damaged")
    options = ("--to", "16", "--scaling", scaling, "--out", runs, "--html", str(tmp_path / "page.html"))
    done = call("extrapolate", "ffff1111", *options)
    assert done.returncode == 0, done.stderr
    assert f"left out ddp/ws8/mb4/fp32: its step_s = {step_s:g}" in " ".join(done.stdout.split())


def test_measured_steps_that_are_too_far_apart_are_told_without_a_percentage(runs):
    stored_run(
        Path(runs), gpu_trial("ddp", 4, 0.2), gpu_trial("ddp", 8, 1e9), run_id="ffff2222", suite_name="far"
    )
    text = refused("ffff2222", "--to", "16", "--out", runs, code=1)
    assert "extrapolated from 4 is off by more than a factor of 10." in text
    assert "ddp: not extrapolated to 16: its interval is wider than a factor of 10 on each side" in text


def test_probes_on_other_gpus_are_refused_with_both_names(runs):
    tesla = {"gpu": "Tesla T4", "gpus": ["Tesla T4"] * 4}
    probe = probe_of(gpu_trial("fsdp", 4, 1.0).case)
    stored_run(
        Path(runs), dataclasses.replace(probe, environment=tesla), run_id="cccc4444", suite_name="rates"
    )
    text = refused("aaaa1111", "--to", "16", "--rates", "cccc4444", "--out", runs)
    assert (
        "--rates cccc4444: its probes ran on 4 x Tesla T4, 1 node, and the run was measured on NVIDIA H100 "
        "80GB HBM3; measure a probe on those"
    ) in text
    # one of two: the rest stays
    both = [
        dataclasses.replace(probe, environment=tesla),
        dataclasses.replace(probe_of(gpu_trial("fsdp", 8, 1.0).case), environment=GPU),
    ]
    stored_run(Path(runs), *both, run_id="cccc5555", suite_name="mixed")
    done = call("extrapolate", "aaaa1111", "--to", "16", "--rates", "cccc5555", "--out", runs, "--json")
    (note,) = (note for note in json.loads(done.stdout)["notes"] if "left out" in note)
    assert "are left out: they ran on 4 x Tesla T4, 1 node, and the run was measured on NVIDIA H100" in note


def test_the_page_tells_measured_and_predicted_points_apart(runs, tmp_path):
    file = tmp_path / "page.html"
    done = call("extrapolate", "aaaa1111", "--to", "16,64", "--out", runs, "--html", str(file))
    assert done.returncode == 0
    assert f"page: {file}" in done.stderr
    block = re.search(r'id="chart-data">(.*?)</script>', file.read_text())
    assert block
    figures = json.loads(block[1])
    assert [*figures] == ["extrapolation-throughput", "extrapolation-efficiency"]
    for figure in figures.values():
        traces = {trace["name"]: trace for trace in figure["data"]}
        seen, foretold = traces["fsdp, measured"], traces["fsdp, predicted"]
        assert (seen["x"], foretold["x"]) == ([4, 8], [16, 64])
        assert (seen["marker"]["symbol"], foretold["marker"]["symbol"]) == ("circle", "diamond-open")
        assert (seen["line"]["dash"], foretold["line"]["dash"]) == ("solid", "dash")
        assert seen["marker"]["color"] != foretold["marker"]["color"]
        assert all(high > 0 for high in foretold["error_y"]["array"])
        # another case has another color, and no predicted points
        assert traces["tp, measured"]["marker"]["color"] not in (
            seen["marker"]["color"],
            foretold["marker"]["color"],
        )
        assert "tp, predicted" not in traces


@pytest.mark.parametrize(("form", "row"), [("--md", r"\*\*fsdp\*\*(.*\n)+?\| 16 \|"), ("--csv", "fsdp,16,")])
def test_other_forms_have_the_same_rows(runs, form, row):
    done = call("extrapolate", "aaaa1111", "--to", "16", "--out", runs, form)
    assert done.returncode == 0
    assert re.search(row, done.stdout)


def test_cpus_need_a_probe_on_both_numbers_of_devices(runs):
    text = refused("bbbb2222", "--to", "4", "--out", runs, code=1)
    assert "ddp: not extrapolated to 4: no probe on 2 devices; data sheets are of GPUs" in text
    assert "distbench probe SUITE --world-sizes N,N measures the rates of both numbers, for --rates." in text
    probes = [probe_of(case("ddp", size, batch=Batch(4 * size, 4, 1))) for size in (2, 4)]
    stored_run(Path(runs), *probes, run_id="cccc3333", suite_name="rates")
    done = call("extrapolate", "bbbb2222", "--to", "4", "--rates", "cccc3333", "--out", runs, "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["devices"]: row for row in json.loads(done.stdout)["rows"]}
    (note,) = (note for note in json.loads(done.stdout)["notes"] if "probes measured" in note)
    assert "cccc3333" in note
    # the rates of both are the same
    assert rows[4]["step"] == pytest.approx(rows[2]["step"])
    assert (rows[4]["source"], rows[4]["efficiency"]) == ("probe", pytest.approx(1.0))


def test_nodes_have_as_many_ranks_as_in_the_run(runs):
    trial = dataclasses.replace(gpu_trial("ddp", 8, 0.2), nodes={"a": [0, 1, 2, 3], "b": [4, 5, 6, 7]})
    on_one = dataclasses.replace(gpu_trial("ddp", 2, 0.2), nodes={"a": [0, 1]})
    stored_run(Path(runs), on_one, trial, run_id="abab1111", suite_name="nodes")
    done = call("extrapolate", "abab1111", "--to", "16", "--out", runs)
    assert "nodes of 4 h100-sxm" in " ".join(done.stdout.split())


def test_gpus_without_a_data_sheet_have_to_be_named(runs):
    trials = gpu_trial("ddp", 8, 0.2, {"gpu": "NVIDIA A100 80GB PCIe"})
    stored_run(Path(runs), trials, run_id="dddd4444", suite_name="others")
    text = refused("dddd4444", "--to", "16", "--out", runs, code=1)
    assert "the type of the GPUs is unknown; name it with --on, such as --on h100-sxm:2x8" in text
    for gpus in ("h100-sxm:2x8", "a100-80gb:2x8"):
        assert call("extrapolate", "dddd4444", "--to", "16", "--out", runs, "--on", gpus).returncode == 0


def test_nodes_of_gpus_without_a_name_are_those_of_the_run_with_the_type_of_the_user(runs):
    pair = [gpu_trial("ddp", devices, 0.2, {"gpu": "NVIDIA X"}) for devices in (2, 4)]
    stored_run(Path(runs), *pair, run_id="dddd5555", suite_name="unnamed")
    notes = []
    for gpus in ("h100-sxm:8x2", "h100-sxm:2x8"):
        done = call("extrapolate", "dddd5555", "--to", "16", "--out", runs, "--on", gpus, "--json")
        source, error = json.loads(done.stdout)["notes"]
        assert source.endswith("; measured on nodes of 4 h100-sxm, 400 Gbit/s a GPU between them.")
        notes.append(error)
    assert notes[0] == notes[1]


MISTAKES = [
    ((), "extrapolate: missing --to; give numbers of devices, such as --to 16,64"),
    (("--to", "0"), "--to = '0': 0 devices; must be from 1 to 1,000,000"),
    (("--to", "x"), "--to = 'x': expected whole numbers, such as 1,2,4"),
    (("--to", "16,9999999"), "--to = '16,9999999': 9999999 devices; must be from 1 to 1,000,000"),
    (("--to", "16", "--scaling", "big"), "--scaling = 'big'"),
    (("--to", "16", "--on", "slurm"), "--on = 'slurm': expected GPUs, such as h100-sxm:8x8"),
    (("--to", "16", "--on", "h100:2x8"), "unknown type of GPU 'h100'; use h100-sxm"),
    (
        ("--to", "16", "--on", "a100-80gb:2x8"),
        "the run was measured on NVIDIA H100 80GB HBM3, which is h100-sxm",
    ),
    (("--to", "16", "--rates", "bbbb2222"), "--rates bbbb2222: the run has no probe"),
    (("--to", "16", "--rates", "nothing"), "nothing: no such run"),
    (("--to", "16", "--json", "--csv"), "use only one of"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_a_wrong_option_is_named_with_what_is_allowed(runs, options, message):
    assert message in refused("aaaa1111", *options, "--out", runs)


def test_a_run_without_measured_cases_and_one_on_cpus_are_told(runs):
    of = case("ddp")
    stored_run(Path(runs), probe_of(of), run_id="eeee5555", suite_name="rates")
    assert "eeee5555: no case of this run was measured" in refused("eeee5555", "--to", "16", "--out", runs)
    on = ("--to", "16", "--on", "h100-sxm:2x8", "--out", runs)
    assert "the run was measured on CPUs, not on GPUs; leave it out" in refused("bbbb2222", *on)
    assert "ffff: no such run" in refused("ffff", "--to", "16", "--out", runs)

"""Scripts of strangers on real ranks, measured unchanged: their numbers, their mistakes, and their ends."""

import json
import os
import signal
import subprocess
import sys

import pytest

from distbench.record import Status
from distbench.record.run_folder import Run
from support.leftover_processes import alive
from support.measured_scripts import SCRIPTS, Measured, measure, measure_command
from support.paused_command import hear_hangups, until

SMALL = 32 * 64 + 64 + 64 * 10 + 10
"""Parameters of the two layers of most scripts."""
SHARDED = 2 * (2 * 32 + 2 * 32 * 64 + 64 + 32) + 32 * 10 + 10
"""Parameters of the script with FSDP."""


def find(part: list[float | None], whole: list[float]) -> int:
    """The place of *part* in *whole*; both are numbers of one computation, in fp32."""
    places = [
        start
        for start in range(len(whole) - len(part) + 1)
        if part == pytest.approx(whole[start : start + len(part)], rel=1e-6)
    ]
    assert len(places) == 1, f"{part} is not in {whole}"
    return places[0]


def honest(measured: Measured, *, steps: int = 10) -> Measured:
    """Check what holds of every script without a mistake."""
    assert measured.code == 0, measured.errors
    record = measured.record
    assert (record.status, record.reason) == (Status.MEASURED, "")
    ranks = record.case.world_size
    assert [len(of) for of in record.samples["step_s"]] == [steps] * ranks == measured.ranks("timed_steps")
    assert measured.findings == {}
    places = {find(losses, measured.own(rank)) for rank, losses in enumerate(record.samples["loss"])}
    assert len(places) == 1, "ranks timed different steps"
    return measured


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Measured:
    return measure(tmp_path_factory.mktemp("plain"), "plain_ddp", ".", options="--keep-running")


def test_a_script_with_ddp_is_measured_with_its_own_numbers(plain):
    honest(plain)
    case, values = plain.record.case, plain.record.values
    assert (case.strategy.name, case.strategy.options, case.precision.label) == ("ddp", {}, "fp32")
    assert (case.batch.global_batch_size, case.batch.micro_batch_size) == (16, 8)
    assert case.batch.gradient_accumulation_steps == 1
    assert (case.optimizer.name, case.optimizer.lr, case.optimizer.momentum) == ("sgd", 0.05, 0.9)
    # a ring of two ranks sends each gradient once
    assert values["comm_bytes"] == 4 * SMALL == plain.ranks("gradient_bytes")[0]
    assert values["samples_per_s"] == pytest.approx(16 / values["step_s"], rel=0.05)
    assert plain.ranks("samples_per_step") == [8, 8]
    assert len(set(plain.ranks("parameter_digest"))) == 1
    assert "plain_ddp.py trains with ddp on 2 ranks" in plain.shown


def test_a_script_that_goes_on_finds_torch_as_it_was(tmp_path):
    measured = honest_single(measure(tmp_path, "untouched", ".", ranks=1, options="--keep-running"))
    told = json.loads((tmp_path / "state.json").read_text())
    # 100 steps, of which the loss scaler skipped one; the hook left is that of the script
    assert told == {"changed": {}, "hooks": [0, 1], "updates": 99}
    case = measured.record.case
    assert (case.strategy.name, case.precision.label, case.precision.loss_scale) == (
        "single",
        "bf16",
        "dynamic",
    )
    assert (case.optimizer.name, case.batch.global_batch_size) == ("RMSprop", 8)
    assert measured.record.effective["optimizer"]["class"] == "torch.optim.rmsprop.RMSprop"


def honest_single(measured: Measured) -> Measured:
    assert measured.code == 0, measured.errors
    find(measured.record.samples["loss"][0], measured.own(0))
    # it reads its losses
    assert [*measured.findings] == ["value-read"]
    assert "untouched.py:" in measured.findings["value-read"].sentence
    return measured


def test_mistakes_in_a_script_are_found(tmp_path):
    mistakes = ("leak", "item", "tiny-buckets", "accumulate", "same-rows", "nan")
    measured = measure(tmp_path, "mistakes", *mistakes, steps=15)
    record, found = measured.record, {kind: each.sentence for kind, each in measured.findings.items()}
    assert measured.code == 1
    assert record.status is Status.INVALID_NAN and "nan" in record.reason
    assert found["same-rows"].startswith("Ranks 0 and 1 train on the same rows (100%")
    assert found["reduces-each-micro-batch"] == (
        "DDP reduced the gradients 2.0 times in a step of 2 backward passes"
    )
    assert found["small-buckets"] == "DDP reduced the gradients in 16 calls of 4.12 KiB on average"
    assert found["growing-memory"].startswith("The memory of rank 0 grew by ")
    assert "reads values of tensors" in found["value-read"] and "mistakes.py:" in found["value-read"]
    assert len(found) == 5
    batch = record.case.batch
    assert (batch.micro_batch_size, batch.gradient_accumulation_steps) == (4, 2)
    assert record.case.strategy.options["bucket_cap_mb"] == pytest.approx(0.001, rel=0.01)


def test_ranks_that_train_apart_are_found(tmp_path):
    measured = measure(tmp_path, "mistakes", "apart", "unused", "slow-loader", "slow-rank")
    found = {kind: each.sentence for kind, each in measured.findings.items()}
    assert (measured.code, measured.record.case.strategy.name) == (0, "script")
    assert "1 rank of 2 (1) had other parameters than the rest" in found["replicas-apart"]
    assert found["no-gradient"].startswith("2 trained parameters got no gradient on rank 0 (forgotten.weight")
    # a busy machine is no cause of its own, but the profile tells who works
    assert "rank 1 works" in measured.record.tables["flags"][0]["reason"]
    waits = measured.record.samples["script_data_s"]
    assert [len(of) for of in waits] == [10, 10]
    assert min(seconds for of in waits for seconds in of) >= 4 * 0.004


@pytest.mark.parametrize(
    ("end", "code", "status", "reason"),
    [
        ("exit", 7, Status.MEASURED, "after 26 of 50 timed steps: os._exit(7)"),
        ("raise", 1, Status.MEASURED, "after 26 of 50 timed steps rank 0 raised ValueError: no more data"),
        ("kill", 137, Status.CRASHED, "after 0 of 50 timed steps: the command was killed by SIGKILL"),
    ],
)
def test_the_end_of_a_script_is_told_and_its_exit_code_passed_on(tmp_path, end, code, status, reason):
    measured = measure(tmp_path, "ends", end, ranks=1, steps=50)
    assert measured.code == code
    assert measured.record.status is status
    assert measured.record.reason.startswith(reason)


def test_a_script_that_ends_before_its_warm_up_does_says_what_to_do(tmp_path):
    measured = measure(tmp_path, "ends", "early", ranks=1, options="--warmup 500")
    assert measured.code == 2
    assert "use a shorter warm-up (--warmup)" in measured.errors
    assert not list((tmp_path / "out").iterdir()), "a run without a record is left"


def test_a_script_without_optimizer_says_what_to_do(tmp_path):
    measured = measure(tmp_path, "ends", "without-optimizer", ranks=1)
    assert measured.code == 2
    assert "call distbench.step() after each step" in measured.errors


def test_ctrl_c_keeps_the_steps_so_far_and_leaves_no_process(tmp_path):
    words = ["measure", "--steps", "1000000", "--warmup", "3", "--out", "out", "--", sys.executable]
    process = subprocess.Popen(
        [sys.executable, "-m", "distbench", *words, str(SCRIPTS / "ends.py"), "never"],
        cwd=tmp_path,
        env={**os.environ},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=hear_hangups,
    )
    until(lambda: any(tmp_path.glob("out/*/scratch/launch0/rank0*.json")), process)
    process.send_signal(signal.SIGINT)
    shown, errors = process.communicate(timeout=300)
    measured = Measured(process.returncode, shown, errors, tmp_path)
    assert process.returncode == 130, errors
    assert measured.run.info().state == "interrupted"
    assert "stopped by a signal after" in measured.record.reason
    assert alive(measured.run.info().run_id) == []


@pytest.mark.deep
@pytest.mark.parametrize(
    ("script", "strategy", "options", "precision", "accumulated", "sent"),
    [
        # the clipping adds up the norms of 14 gradients
        ("fully_sharded", "fsdp", {}, "bf16", 1, 2 * 2 * SHARDED + 4 * SHARDED + 14 * 4),
        ("fully_sharded_v1", "fsdp", {"version": 1}, "bf16", 1, 2 * SMALL + 4 * SMALL + 4),
        ("zero", "zero", {"stage": 2}, "fp32", 2, 3 * 4 * (SMALL + 1)),
        ("accelerated", "ddp", {}, "fp32", 2, 4 * SMALL),
    ],
)
def test_a_script_of_a_framework_is_measured(
    tmp_path, script, strategy, options, precision, accumulated, sent
):
    measured = honest(measure(tmp_path, script, ".", options="--keep-running"))
    case = measured.record.case
    assert (case.strategy.name, case.strategy.options) == (strategy, options)
    assert case.precision.label == precision
    assert (case.batch.micro_batch_size, case.batch.gradient_accumulation_steps) == (4, accumulated)
    assert measured.ranks("samples_per_step") == [4 * accumulated] * 2
    # FSDP gathers weights in bf16 twice (its root once) and scatters gradients in fp32; ZeRO-2 reduces
    # gradients of each micro-batch, padded by one, and gathers weights
    assert measured.record.values["comm_bytes"] == sent
    if script.startswith("fully_sharded"):
        assert_norms_are_its_own(measured)
        assert case.compile == ("default" if options else "none")


def assert_norms_are_its_own(measured: Measured) -> None:
    record = measured.record
    assert record.case.optimizer.clip_grad_norm == 0.5
    # each step has its norm, although a rank of FSDP2 knows only that of its shards
    start = find(record.samples["loss"][0], measured.own(0))
    norms = measured.own(0, "norms")[start : start + 10]
    assert record.values["grad_norm"] == pytest.approx(sum(norms) / 10, rel=1e-5)


@pytest.mark.deep
def test_a_script_of_fabric_starts_its_ranks_itself(tmp_path):
    command = (sys.executable, str(SCRIPTS / "fabric.py"), ".")
    measured = honest(measure_command(tmp_path, *command, options="--steps 10 --warmup 3 --keep-running"))
    case = measured.record.case
    # autocast begins inside of the wrapper of Fabric
    assert (case.strategy.name, case.world_size, case.precision.compute) == ("ddp", 2, "bf16")
    assert_norms_are_its_own(measured)


@pytest.mark.deep
def test_a_compiled_function_keeps_its_graph_and_its_tokens_can_be_told(tmp_path):
    options = "--tokens-per-step 512 --keep-running"
    measured = honest(measure(tmp_path, "compiled_step", ".", options=options))
    values, absent = measured.record.values, measured.record.absent
    # no hook is in the graph, so neither its inputs nor its forward pass are seen
    assert "script_forward_s" not in values and "script_backward_s" in values
    assert "samples_per_s" not in values and "don't tell its samples" in absent["samples_per_s"]
    assert values["tokens_per_s"] == pytest.approx(512 / values["step_s"], rel=0.05)
    assert "torch.compile" not in measured.errors


@pytest.mark.deep
def test_a_trained_model_of_transformers_becomes_a_suite_with_the_alternatives(tmp_path):
    measured = measure(tmp_path, "trainer", ".")
    words = [sys.executable, "-m", "distbench"]
    made = subprocess.run(
        [*words, "init", "mine.yaml", "--from", measured.run.folder, "--out", "out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    assert "left out: its data" in made.stderr
    settings = ("measure.trials=1", "measure.steps=2", "measure.warmup=1", "check=false")
    sets = [word for each in settings for word in ("--set", each)]
    ran = subprocess.run(
        [*words, "run", "mine.yaml", "--out", "mine", "--only", "ddp*", *sets],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    (folder,) = (tmp_path / "mine").iterdir()
    records = Run(folder).records()
    # as the Trainer does it, and without
    assert {record.case.strategy.options.get("find_unused_parameters", False) for record in records} == {
        True,
        False,
    }
    for record in records:
        assert record.status is Status.MEASURED
        for key in ("parameters", "global_batch_size", "micro_batch_size", "gradient_accumulation_steps"):
            assert record.effective[key] == measured.record.effective[key], key


@pytest.mark.deep
def test_a_trainer_logs_the_mean_of_the_losses_of_its_ranks(tmp_path):
    measured = measure(tmp_path, "trainer", ".", options="--keep-running")
    assert (measured.code, measured.findings) == (0, {}), measured.errors
    record = measured.record
    means = [sum(of) / 2 for of in zip(*record.samples["loss"], strict=True)]
    find(means, measured.own(0))
    assert record.case.strategy.name == "ddp"
    assert (record.case.batch.micro_batch_size, record.case.batch.gradient_accumulation_steps) == (4, 2)
    assert record.case.workload.options["command"][0].endswith("trainer.py")
    assert record.values["tokens_per_s"] == pytest.approx(16 * record.values["samples_per_s"])


@pytest.mark.deep
def test_the_steps_of_two_optimizers_end_with_the_rarer_one(tmp_path):
    measured = measure(tmp_path, "adversarial")
    assert (measured.code, measured.findings) == (0, {}), measured.errors
    # three updates of a critic from 8 samples each, and one of a generator, through the critic
    critic, generator = 4 * (16 * 32 + 32 + 32 + 1), 4 * (4 * 32 + 32 + 32 * 16 + 16)
    assert measured.ranks("samples_per_step") == [24, 24]
    assert measured.ranks("backward_passes") == [4, 4]
    assert measured.record.values["comm_bytes"] == 4 * critic + generator
    assert measured.record.case.batch.gradient_accumulation_steps == 1


@pytest.mark.deep
def test_a_rank_that_never_trains_is_told(tmp_path):
    measured = measure(tmp_path, "ends", "one-rank")
    assert measured.code == 1
    assert measured.record.reason.startswith("rank 1 was never measured, as it updated no optimizer")

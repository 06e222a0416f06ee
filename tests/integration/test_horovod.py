"""Horovod takes the steps of real ranks: the same training, and nothing told that nobody has counted."""

import pytest

from distbench.jobs.equivalence.arms import EQUIVALENT, ROUNDING
from support import leftover_processes

SUITE = """
workload: {user: {model: "small:Small", length: 32}}
data: text
batch: {global_batch_size: 8, micro_batch_size: 2}
strategies: [ddp]
engine: [native, horovod]
limits: {step: 60}
world_sizes: [2]
"""
CHECK = "check: {steps: 2, perturbed: 4, fp64: false}\n"
CLIPPED = (
    "optimizer: {name: adamw, schedule: cosine, warmup_steps: 2, total_steps: 8, clip_grad_norm: 0.05}\n"
)
TIMED = "measure: {warmup: 1, steps: 3, trials: 1, profile_steps: 2, unsynced_steps: 2}\n"
SHORT = "measure: {warmup: 1, steps: 2, trials: 1, profile_steps: 0}\nmetrics: [steptime, throughput]\n"
UNSEEN = "engine horovod communicates outside of torch.distributed"
PARTS = ("profile_exposed_comm_s", "profile_backward_s", "profile_idle_s", "comm_exposed_s", "work_s")


def framed(done, engine="horovod"):
    """Return the records of the trials with *engine*."""
    records = [done.read(file) for file in done.folder.glob("trials/*/0/record.json")]
    return [each for each in records if each["case"]["engine"]["name"] == engine]


def test_without_a_network_its_case_is_not_prepared_and_the_others_run(run_suite, tmp_path):
    done = run_suite(
        f"{SUITE}{SHORT}launcher: local\n",
        DISTBENCH_CACHE=str(tmp_path / "cache"),
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        PIP_RETRIES="0",
    )
    found = {name.rpartition("=")[2]: case for name, case in done.cases.items()}
    assert found["native"]["status"] == "measured"
    assert found["horovod"]["status"] == "prepare_failed"
    assert "engine horovod: pip can't download " in found["horovod"]["reason"]
    assert "use engine: native, or install a horovod for this torch" in found["horovod"]["reason"]


@pytest.mark.deep
def test_horovod_is_the_same_training_and_what_it_sends_is_unknown(run_suite):
    done = run_suite(f"{SUITE}{CHECK}{CLIPPED}{TIMED}")
    assert done.code == 0, done.errors
    assert {case["status"] for case in done.cases.values()} == {"measured"}
    assert len(done.verdicts) == 2
    assert set(done.verdicts.values()) <= {EQUIVALENT, ROUNDING}
    (record,) = framed(done)
    effective = record["effective"]
    assert effective["engine"] == "HorovodEngine"
    assert effective["framework"] == "horovod 0.28.1"
    assert (effective["world_size"], effective["gradient_accumulation_steps"]) == (2, 2)
    assert effective["optimizer"]["class"] == "torch.optim.adamw.AdamW"
    assert effective["dtypes"]["reduce"] == "fp32"
    columns = ("comm_bytes", "comm_calls", "comm_bytes_theory", "comm_inside_bytes", *PARTS)
    assert {record["absent"][name] for name in columns} == {UNSEEN}
    assert not {"comm_exposed_by_difference_s", "memory_buffers", *columns} & record["values"].keys()
    assert record["values"]["profile_step_s"] > 0
    assert not {"collectives", "collectives_theory", "timeline"} & {
        name for name, rows in record["tables"].items() if rows
    }
    (native,) = framed(done, "native")
    assert native["values"]["comm_bytes"] > 0
    # the same steps of the same training
    losses = [each["samples"]["loss"][0] for each in (record, native)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert leftover_processes.alive(record["run_id"]) == []


@pytest.mark.deep
def test_gradients_that_are_compressed_round_like_those_of_ddp(run_suite):
    done = run_suite(f"{SUITE}{CHECK}{CLIPPED}{SHORT}precision: [{{reduce: fp16}}, bf16]\n")
    assert done.code == 0, done.errors
    words = {name: case["equivalence"] for name, case in done.cases.items()}
    by_engine = {
        engine: [word["verdict"] for name, word in words.items() if name.endswith(engine)]
        for engine in ("native", "horovod")
    }
    assert by_engine["horovod"] == by_engine["native"]
    assert len(by_engine["horovod"]) == 2
    assert {each["effective"]["dtypes"]["reduce"] for each in framed(done)} == {"fp16", "fp32"}


@pytest.mark.deep
def test_horovod_goes_on_from_checkpoints_of_ddp(run_suite):
    text = f"{SUITE}measure: {{trials: 0}}\ncheckpoint: {{steps_before: 2, steps_after: 2}}\n"
    done = run_suite(text)
    assert done.code == 0, done.errors
    assert len(done.checkpoints) > 1
    assert {each["verdict"] for each in done.checkpoints} <= {"same", "rounding"}


@pytest.mark.deep
def test_one_rank_trains_alone(run_suite):
    done = run_suite(f"{SUITE}{CHECK}{SHORT}".replace("world_sizes: [2]", "world_sizes: [1]"))
    assert done.code == 0, done.errors
    assert set(done.verdicts.values()) <= {EQUIVALENT, ROUNDING}

"""BatchNorm whose statistics are meant to be those of one rank, and of all ranks."""

import pytest

from distbench.jobs.equivalence.arms import DIFFERS, EQUIVALENT, ROUNDING


def suite(options: str, model: str = "odd:BatchNorm") -> str:
    return f"""
workload: {{user: {{model: "{model}", length: 16, {options}}}}}
data: text
batch: {{global_batch_size: 8, micro_batch_size: 2}}
world_sizes: [2]
"""


def test_per_rank_statistics_are_compared_in_the_same_parts_and_mistakes_are_found(run_suite):
    done = run_suite(f"""{suite("batch_norm: per_rank")}
measure: {{trials: 0}}
check: {{steps: 2, perturbed: 4, fp64: false}}
strategies: [{{planted: {{bug: [none, summed, same-samples]}}}}]
""")
    found = done.found("planted")
    assert found.pop("none") in (EQUIVALENT, ROUNDING)
    assert found == {"summed": DIFFERS, "same-samples": DIFFERS}
    ((honest, *_),) = [each["equivalence"]["arms"] for name, each in done.cases.items() if "-none/" in name]
    assert honest["in_parts"] == 4 and honest["reference"].startswith("reference/single/ws1/mb2/")


@pytest.mark.parametrize(
    ("model", "precision", "told"),
    [
        ("Synchronised", "fp32", "torch's SyncBatchNorm runs on GPUs only, and the model contains one"),
        ("BatchNorm", "bf16", "norm is a BatchNorm with weights in bf16 and running statistics"),
    ],
)
def test_layers_that_cpus_can_not_compute_are_refused(run_suite, model, precision, told):
    shape = suite("length: 16", f"odd:{model}").replace("length: 16, length: 16", "length: 16")
    more = f"precision: {precision}\nmeasure: {{warmup: 1, steps: 1, trials: 1}}\nstrategies: [ddp]\n"
    (case,) = run_suite(f"{shape}{more}").cases.values()
    assert case["status"] == "unsupported"
    assert case["reason"].startswith(told)

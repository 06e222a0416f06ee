"""Model FLOPs utilisation by hand: what is counted, by which peak, and when there is no number."""

from collections.abc import Iterator
from typing import Any

import pytest

from distbench.core.case import PrecisionConfig
from distbench.metrics.base import NotAvailable, TrialData
from distbench.metrics.utilisation import Utilisation, published_peak
from distbench.workloads.transformer import Transformer
from support.records import case


def summary(
    flops: int | None = 3_000_000,
    peak: float | None = 1e6,
    again: int | None = 900_000,
    absent: dict[str, str] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    samples: dict[str, list[list[float | None]]] = {"step_s": [[2.0, 4.0], [1.0, 5.0]]}
    if peak is not None:
        samples["peak_flops"] = [[peak], [peak]]
    trial = TrialData(
        case=case("ddp", 2, **changes),
        tokens_per_sample=16,
        flops_per_sample=flops,
        recomputed_flops_per_sample=again,
        absent=absent or {},
        samples=samples,
        phases={},
    )
    return dict(Utilisation().summary(trial))


def test_mfu_counts_the_global_batch_over_the_slowest_ranks_time_and_every_device():
    # 8 samples of 3 MFLOP in (2 + 4) / 2 s, the window of either rank, on 2 devices of 1 MFLOP/s
    expected = 8 * 3e6 / 3.0 / 2 / 1e6
    found = summary()
    assert found["mfu"] == pytest.approx(expected)
    assert found["hfu"] == found["mfu"]
    assert found["model_flops_per_s_per_device"] == pytest.approx(expected * 1e6)


def test_recomputation_adds_what_is_computed_again_to_hfu_and_nothing_to_mfu():
    found = summary(activation_checkpointing="full")
    assert found["mfu"] == summary()["mfu"]
    assert found["hfu"] == pytest.approx(found["mfu"] * 3.9 / 3)


def test_where_what_is_computed_again_is_unknown_there_is_no_hfu_but_the_reason():
    absent = {"recomputed_flops_per_sample": "because"}
    found = summary(again=None, absent=absent, activation_checkpointing="full")
    assert isinstance(found["mfu"], float)
    assert str(found["hfu"]) == "because"
    assert summary(again=None)["hfu"] == summary()["mfu"]


def test_only_blocks_are_computed_again_and_not_the_head():
    """A forward pass of it all would say 11% too much of GPT-2 small with 1,024 tokens."""
    small = Transformer(preset="gpt2-small", seq_len=1024)
    whole, again = small.flops_per_sample(), small.recomputed_flops_per_sample()
    block = 4 * 768**2 + 2 * 768 * 2048 + 2 * 768
    assert again == 1024 * 12 * (2 * block + 4 * 768 * 1024)
    assert 4 / 3 / (1 + again / whole) == pytest.approx(1.112, abs=0.001)


def test_without_a_known_peak_there_is_no_mfu_but_a_reason():
    found = summary(peak=None)
    assert isinstance(found["mfu"], NotAvailable)
    assert isinstance(found["hfu"], NotAvailable)
    assert found["model_flops_per_s_per_device"] > 0


def test_where_flops_are_unknown_there_is_nothing_but_the_reason():
    with pytest.raises(NotAvailable, match="because"):
        summary(flops=None, absent={"flops_per_sample": "because"})


@pytest.mark.parametrize(
    "gpu",
    [
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "AMD Instinct MI100",
        "",
        "H200",
    ],
)
def test_an_unknown_gpu_and_a_slice_of_a_known_one_have_no_peak(gpu):
    assert published_peak(gpu) is None


def test_the_peak_is_that_of_the_precision_in_use():
    peak = published_peak("NVIDIA H200")
    assert peak is not None
    assert peak.for_dtype(PrecisionConfig(compute="bf16").compute, tf32=True) == 989.5e12
    assert peak.for_dtype("fp32", tf32=True) == 494.7e12
    assert peak.for_dtype("fp32", tf32=False) == 67e12


@pytest.mark.parametrize(
    ("gpu", "compute", "flops"),
    [
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2e12),
        ("NVIDIA A100-SXM4-80GB", "fp64", 19.5e12),
        ("NVIDIA GH200 120GB", "bf16", 989.5e12),
        ("NVIDIA L40S", "fp64", None),
        ("Tesla V100-SXM2-32GB", "fp16", 125e12),
        ("Tesla V100-SXM2-32GB", "bf16", None),
        ("Tesla V100-SXM2-32GB", "fp32", 15.7e12),
    ],
)
def test_a_dtype_that_its_source_has_no_peak_for_has_none(gpu, compute, flops):
    peak = published_peak(gpu)
    assert peak and peak.source
    assert peak.for_dtype(compute, tf32=True) == flops, "TF32 changes neither fp64 nor what knows no TF32"


@pytest.fixture
def restored() -> Iterator[None]:
    """Settings of torch's matmuls are of the whole process."""
    import torch

    yield
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.backends.mkldnn.matmul.fp32_precision = "none"
    torch.backends.cudnn.allow_tf32 = True


@pytest.mark.train
@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(("set_to", "told"), [("tf32", "high"), ("ieee", "highest"), ("none", "highest")])
def test_the_precision_of_fp32_is_told_whichever_way_a_model_has_set_it(set_to, told):
    import torch

    from distbench.metrics.utilisation.matmul import fp32_precision

    torch.backends.cuda.matmul.fp32_precision = set_to
    assert fp32_precision(torch.device("cuda")) == told
    assert fp32_precision(torch.device("cpu")) == "highest", "each kind of device has its own"


@pytest.mark.train
@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_products_convolutions_and_rnns_have_one_precision(precision):
    import torch

    from distbench.metrics.utilisation.matmul import cudnn_precisions, fp32_precision, set_fp32_precision

    set_fp32_precision(precision)
    assert fp32_precision(torch.device("cuda")) == precision
    assert cudnn_precisions() == {"convolution_precision": precision, "rnn_precision": precision}
    with torch.backends.cudnn.flags(benchmark=True):
        assert torch.backends.cudnn.benchmark


@pytest.mark.train
@pytest.mark.usefixtures("restored")
def test_convolutions_for_which_a_model_allows_tf32_are_told():
    import torch

    from distbench.metrics.utilisation.matmul import cudnn_precisions, set_fp32_precision

    set_fp32_precision("highest")
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    assert cudnn_precisions() == {"convolution_precision": "high", "rnn_precision": "highest"}


@pytest.mark.train
@pytest.mark.usefixtures("restored")
def test_tf32_that_the_environment_forbids_is_not_used(monkeypatch):
    import torch

    from distbench.metrics.utilisation.matmul import cudnn_precisions, fp32_precision

    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert cudnn_precisions()["convolution_precision"] == "highest"
    assert fp32_precision(torch.device("cuda")) == "highest"


@pytest.mark.train
def test_a_matmul_on_a_cpu_has_a_rate():
    import torch

    from distbench.metrics.utilisation.matmul import best_matmul_rate

    assert best_matmul_rate(64, "fp32", torch.device("cpu")) > 0

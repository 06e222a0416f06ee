"""Published step times of others, and the layout, GPUs and kernels that their sources describe.

``rows.csv`` has one step a row: its source, what was run and the measured seconds. Where a source leaves
something out, ``assumed`` says what stands in for it. ``models.csv`` has the dimensions of the models.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distbench.prediction.decoder import DecoderShape, attention_flops, head_product, layer_products
from distbench.prediction.estimates import StepPrediction
from distbench.prediction.hardware import Hardware
from distbench.prediction.kernels import COMPILED, EAGER, Kernels
from distbench.prediction.layout import StepLayout
from distbench.prediction.step_time import predicted_step
from distbench.system.gpu_data_sheets import DATA_SHEETS

FOLDER = Path(__file__).parent

# kernels of Transformer Engine and Megatron: fused norms and activations, casts inside of them
_FUSED = dataclasses.replace(COMPILED, loss_bytes_per_logit=16, attention="vendor", cast_bytes_per_element=2)
KERNELS = {
    "torch-eager": EAGER,
    "torch-compile": COMPILED,
    # LayerNorm in fp32 under autocast, GELU alone, no rotary positions
    "mpt": dataclasses.replace(
        EAGER,
        norm_passes=8,
        residual_passes=4,
        rotary_passes=2,
        activation_passes=4,
        attention="first",
        launch_s=150e-6,
    ),
    "te": _FUSED,
    "te-deterministic": dataclasses.replace(_FUSED, cast_bytes_per_element=7),
    "megatron": dataclasses.replace(_FUSED, norm_passes=4, residual_passes=5, attention="unfused"),
    "deepspeed": dataclasses.replace(
        EAGER, norm_passes=8, residual_passes=4, rotary_passes=3, activation_passes=6, attention="unfused"
    ),
}
DATA_PARALLELISM: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp": {"gather_frequency": "pass", "reduce_frequency": "micro_batch"},
    "fsdp-grad-op": {"gather_frequency": "micro_batch", "reduce_frequency": "micro_batch"},
    "fsdp-once": {"gather_frequency": "step"},
    "distributed-optimizer": {"gather_frequency": "step"},
    "zero1": {
        "reduce_op": "all_reduce",
        "gather_frequency": "step",
        "overlaps_gathers": False,
        "overlaps_reductions": False,
    },
    "zero2": {"gather_frequency": "step", "reduce_frequency": "micro_batch", "overlaps_gathers": False},
    "zero3": {"gather_frequency": "pass", "reduce_frequency": "micro_batch"},
}
_FLOAT8 = {"fp8": "tensor", "fp8-rowwise": "row", "fp8-mx": "block"}
_NOT_PREDICTED = {"zero2+offload": "offload: the bandwidth of the CPU and of its memory needs a probe"}


@dataclass(frozen=True)
class PublishedStep:
    """A step that somebody measured, in the words of the model of time."""

    facts: dict[str, str]
    decoder: DecoderShape
    layout: StepLayout
    hardware: Hardware
    kernels: Kernels

    @property
    def name(self) -> str:
        return self.facts["row"]

    @property
    def source(self) -> str:
        return self.facts["source"]

    @property
    def seconds(self) -> float:
        """Measured seconds."""
        return float(self.facts["seconds"])

    @property
    def rate(self) -> float:
        """Measured tokens/s of a GPU."""
        return self.layout.tokens_per_step / self.layout.ranks / self.seconds

    def predict(self) -> StepPrediction | str:
        if reason := _NOT_PREDICTED.get(self.facts["data"]):
            return reason
        return predicted_step(self.decoder, self.layout, self.hardware, self.kernels)

    def seconds_at_peak(self, *, own_dtype: bool) -> float:
        """Seconds of all FLOPs, also of what is computed again, at the peak in 16 bits or its own dtype."""
        layout, peak = self.layout, self.hardware.sheet.peak
        flops = peak.float8 if own_dtype and layout.float8 != "none" else peak.fp16
        assert flops
        products = sum(each.flops for each in layer_products(self.decoder, layout.tokens, 1))
        attention = attention_flops(self.decoder, layout.tokens, layout.length, 1)
        again = {"full": products + attention, "half": products / 2, "attention": attention}
        layer = 3 * products + 3.5 * attention + again.get(layout.recomputation, 0.0)
        head = 3 * head_product(self.decoder, layout.tokens, 1).flops
        copies = layout.context * layout.shards * layout.replicas * layout.micro_batches
        return copies * (self.decoder.layers * layer + head) / layout.ranks / flops


def read_rows() -> list[PublishedStep]:
    """All rows, in the order of the file."""
    with (FOLDER / "models.csv").open() as file:
        models = {each.pop("model"): _decoder(each) for each in csv.DictReader(file)}
    with (FOLDER / "rows.csv").open() as file:
        return [_step(facts, models) for facts in csv.DictReader(file)]


def predictions(rows: list[PublishedStep]) -> Iterator[tuple[PublishedStep, StepPrediction]]:
    """Yield the rows that can be predicted, with what is predicted."""
    for row in rows:
        step = row.predict()
        if not isinstance(step, str):
            yield row, step


def _decoder(sizes: dict[str, str]) -> DecoderShape:
    flags = {name: sizes.pop(name) == "1" for name in ("gated", "tied")}
    return DecoderShape(**{name: int(size) for name, size in sizes.items()}, **flags)


def _step(facts: dict[str, str], models: dict[str, DecoderShape]) -> PublishedStep:
    names = {"tp": "tensor", "cp": "context", "pp": "stages", "vpp": "chunks", "seq": "length"}
    same = ("micro_batch", "micro_batches")
    sizes = {new: int(facts[old]) for old, new in (*names.items(), *zip(same, same, strict=True))}
    ranks = int(facts["gpus"]) // (sizes["tensor"] * sizes["context"] * sizes["stages"])
    options = DATA_PARALLELISM[facts["data"].removesuffix("+offload")]
    layout = StepLayout(
        **sizes,
        shards=ranks if options else 1,
        replicas=1 if options else ranks,
        sequence_parallel=facts["sequence_parallel"] == "1",
        overlaps_tensor=facts["async_tp"] == "1",
        recomputation=facts["recompute"],  # type: ignore[arg-type]
        float8=_FLOAT8.get(facts["precision"], "none"),  # type: ignore[arg-type]
        dtype="fp16" if facts["precision"] == "fp16" else "bf16",
        gradient_bytes=4 if facts["reduce"] == "fp32" else 2,
        **options,
    )
    return PublishedStep(facts, models[facts["model"]], layout, _hardware(facts), KERNELS[facts["engine"]])


def _hardware(facts: dict[str, str]) -> Hardware:
    sheet = DATA_SHEETS[facts["gpu"]]
    if memory := facts["memory_gb_s"]:
        sheet = dataclasses.replace(sheet, memory_bandwidth=float(memory) * 1e9)
    network = float(facts["network_gbit_s"]) * 1e9 / 8 if facts["network_gbit_s"] else sheet.network
    return Hardware(sheet, int(facts["per_node"]), sheet.inside, network)

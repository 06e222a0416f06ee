"""Data sheets of the types of GPUs in ``gpu_types``: peaks, and bandwidths of memory and links.

Bandwidths of links are of one GPU in one direction; data sheets often print the sum of both directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distbench.system.gpu_peaks import Peak, published_peak

Generation = Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell", "cdna"]


@dataclass(frozen=True)
class DataSheet:
    """Rates of a GPU."""

    driver_name: str
    """Name of a GPU of this type as its driver reports it."""
    generation: Generation
    peak: Peak
    memory_bandwidth: float
    """Bytes/s of its memory."""
    pcie: float
    """Bytes/s of its PCIe link."""
    links: float | None = None
    """Bytes/s of its NVLink or Infinity Fabric to the other GPUs of a node; None: it has PCIe alone, or its
    links to others differ."""
    network: float | None = None
    """Bytes/s of its share of the network cards in the vendor's own system of 8 or 72 GPUs; None: there is
    no such system."""
    linked_gpus: int | None = None
    """GPUs that its links reach beyond a node; None: those of its node."""
    is_switched: bool = True
    """True if each pair of GPUs has the whole bandwidth of the links; false: each pair has its own link."""
    achieved_share: float | None = None
    """Share of the peak in bf16 that the fastest matrix product was measured to reach; None: no measurement.

    Sources: maximum achievable matmul FLOPS (MAMF) in Bekman, Machine Learning Engineering, at 744d01e
    (https://github.com/stas00/ml-engineering/tree/master/compute/accelerator)."""
    float8_achieved_share: float | None = None
    """Likewise of the peak in float8."""

    @property
    def inside(self) -> float | None:
        """Bytes/s of the fastest link to the other GPUs of a node; None: it depends on which of them."""
        return self.links or (self.pcie if self.is_switched else None)

    @property
    def source(self) -> str:
        """Document with these figures."""
        return self.peak.source


def _sheet(
    generation: Generation, driver_name: str, memory_gb: float, pcie_gb: float, **more: float | bool
) -> DataSheet:
    """Data sheet with bandwidths in GB/s, but the network in Gb/s, and shares as they are."""
    peak = published_peak(driver_name)
    assert peak is not None, f"{driver_name} has no published peak"
    units = {"links": 1e9, "network": 1e9 / 8}
    values = {key: value * units[key] if key in units else value for key, value in more.items()}
    return DataSheet(driver_name, generation, peak, memory_gb * 1e9, pcie_gb * 1e9, **values)  # type: ignore[arg-type]


_A100 = {"links": 300, "network": 200, "achieved_share": 271.2 / 312}
_V100 = {"links": 150, "network": 50}
_H100 = {"links": 450, "network": 400, "achieved_share": 794.5 / 989.5}
_BLACKWELL = {"links": 900, "network": 400}
_NVL72 = {
    "links": 900,
    "linked_gpus": 72,
    "achieved_share": 1822 / 2500,
    "float8_achieved_share": 3615.6 / 5000,
}

DATA_SHEETS = {
    "v100-16gb": _sheet("volta", "Tesla V100-SXM2-16GB", 900, 16, **_V100),
    "v100-32gb": _sheet("volta", "Tesla V100-SXM2-32GB", 900, 16, **_V100),
    "t4": _sheet("turing", "Tesla T4", 320, 16),
    "a10": _sheet("ampere", "NVIDIA A10", 600, 32),
    "a30": _sheet("ampere", "NVIDIA A30", 933, 32),
    "a40": _sheet("ampere", "NVIDIA A40", 696, 32),
    "a100-40gb": _sheet("ampere", "NVIDIA A100-SXM4-40GB", 1555, 32, **_A100),
    "a100-80gb": _sheet("ampere", "NVIDIA A100-SXM4-80GB", 2039, 32, **_A100),
    "rtx-3090": _sheet("ampere", "NVIDIA GeForce RTX 3090", 936, 32),
    "rtx-a6000": _sheet("ampere", "NVIDIA RTX A6000", 768, 32),
    "l4": _sheet("ada", "NVIDIA L4", 300, 32),
    "l40": _sheet("ada", "NVIDIA L40", 864, 32),
    "l40s": _sheet("ada", "NVIDIA L40S", 864, 32),
    "rtx-4090": _sheet("ada", "NVIDIA GeForce RTX 4090", 1008, 32),
    "h100-sxm": _sheet(
        "hopper", "NVIDIA H100 80GB HBM3", 3350, 64, **_H100, float8_achieved_share=1402.6 / 1979
    ),
    "h100-pcie": _sheet("hopper", "NVIDIA H100 PCIe", 2000, 64),
    "h100-nvl": _sheet("hopper", "NVIDIA H100 NVL", 3900, 64),
    "h200": _sheet("hopper", "NVIDIA H200", 4800, 64, **_H100, float8_achieved_share=1453.4 / 1979),
    "h200-nvl": _sheet("hopper", "NVIDIA H200 NVL", 4800, 64),
    "b200": _sheet(
        "blackwell",
        "NVIDIA B200",
        8000,
        64,
        **_BLACKWELL,
        achieved_share=1745 / 2250,
        float8_achieved_share=3432.5 / 4500,
    ),
    "gb200": _sheet("blackwell", "NVIDIA GB200", 8000, 64, **_NVL72, network=400),
    "gb300": _sheet("blackwell", "NVIDIA GB300", 8000, 128, links=900, network=800, linked_gpus=72),
    "rtx-5090": _sheet("blackwell", "NVIDIA GeForce RTX 5090", 1792, 64),
    "mi250x": _sheet("cdna", "AMD Instinct MI250X", 1600, 32, is_switched=False),
    "mi300x": _sheet(
        "cdna", "AMD Instinct MI300X", 5300, 64, links=448, is_switched=False, achieved_share=668.4 / 1307.4
    ),
    "mi325x": _sheet(
        "cdna", "AMD Instinct MI325X", 6000, 64, links=448, is_switched=False, achieved_share=784.9 / 1307.4
    ),
    "mi355x": _sheet(
        "cdna", "AMD Instinct MI355X", 8000, 64, links=537.6, is_switched=False, achieved_share=1565 / 2516.6
    ),
}
"""Data sheets by the names of ``GPU_TYPES``."""


def type_of_gpu(driver_name: str) -> str:
    """Type of the GPUs that their driver calls *driver_name*; empty: none of ``DATA_SHEETS``."""
    return next((name for name, sheet in DATA_SHEETS.items() if sheet.driver_name == driver_name), "")

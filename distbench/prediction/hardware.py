"""Rates that GPUs and their links reach in a training, from data sheets."""

from __future__ import annotations

from dataclasses import dataclass

from distbench.core.machine import Machine
from distbench.system.gpu_data_sheets import DATA_SHEETS, DataSheet, Generation

_MEASURED: dict[Generation, tuple[float, float]] = {
    # the lowest of each generation; none was measured for Volta, Turing and Ada, which get Hopper's
    "ampere": (0.869, 0.709),
    "hopper": (0.803, 0.709),
    "blackwell": (0.729, 0.723),
    "cdna": (0.511, 0.511),
}
"""Shares of the peaks in bf16 and float8 that are taken for types without a measurement of their own."""
_SUSTAINED: dict[Generation, float] = {"volta": 0.92, "ampere": 0.92}
_SUSTAINED_AT_POWER_LIMIT = 0.83
"""Shares of its fastest product's rate that the products of layers reach for minutes: GPUs lower their clocks
at the power limit. Chosen for Ampere, Hopper and Blackwell with the published rows in view
(docs/foresight.md). Volta has Ampere's; Turing, Ada and CDNA, of which no row is published, the lower one."""
_MEMORY = 0.85
"""Share of the memory's bandwidth that copies reach."""
_ROWS_PUBLISHED: frozenset[Generation] = frozenset({"ampere", "hopper", "blackwell"})


@dataclass(frozen=True)
class Hardware:
    """Nodes with equal GPUs."""

    sheet: DataSheet
    gpus_per_node: int
    """GPUs that the links inside a node reach."""
    inside: float | None
    """Bytes/s of a GPU to another one of its node, in one direction; None: unknown."""
    between: float | None
    """Bytes/s of a GPU to other nodes, in one direction; None: unknown."""

    @property
    def generation(self) -> Generation:
        """Generation of the GPU."""
        return self.sheet.generation

    @property
    def has_published_steps(self) -> bool:
        """True if predictions were compared with published steps of GPUs of this generation."""
        return self.generation in _ROWS_PUBLISHED

    @property
    def memory(self) -> float:
        """Bytes/s of passes over the GPU's memory."""
        return self.sheet.memory_bandwidth * _MEMORY

    def product_flops(self, dtype: str, *, tf32: bool) -> float | None:
        """FLOP/s of large matrix products in *dtype*; None: the data sheet has no peak for it."""
        peak = self.sheet.peak.for_dtype(dtype, tf32=tf32)
        achieved_share = self.sheet.achieved_share or _MEASURED.get(self.generation, _MEASURED["hopper"])[0]
        return None if peak is None else peak * achieved_share * self._sustained

    @property
    def float8_flops(self) -> float | None:
        """FLOP/s of large matrix products in float8; None: the data sheet has no peak for it."""
        achieved_share = (
            self.sheet.float8_achieved_share or _MEASURED.get(self.generation, _MEASURED["hopper"])[1]
        )
        return (
            None
            if self.sheet.peak.float8 is None
            else self.sheet.peak.float8 * achieved_share * self._sustained
        )

    @property
    def _sustained(self) -> float:
        return _SUSTAINED.get(self.generation, _SUSTAINED_AT_POWER_LIMIT)


def hardware_of(machine: Machine) -> Hardware | str:
    """Hardware of *machine*, or the reason why it has no data sheet."""
    if machine.device != "cuda":
        return "data sheets are of GPUs, and this case runs on CPUs"
    if not machine.gpu_type:
        size = f"{machine.nodes}x{machine.devices_per_node}"
        return f"the type of the GPUs is unknown; name it with --on, such as --on h100-sxm:{size}"
    sheet = DATA_SHEETS.get(machine.gpu_type)
    if sheet is None:
        return f"distbench has no data sheet of a GPU of type {machine.gpu_type}"
    per_node = machine.devices_per_node
    return Hardware(
        sheet,
        per_node if sheet.linked_gpus is None else max(per_node, sheet.linked_gpus),
        machine.inside or sheet.inside,
        machine.between or sheet.network,
    )

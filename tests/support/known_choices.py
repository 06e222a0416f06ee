"""Record sets made by hand, whose right answer is known."""

from __future__ import annotations

from dataclasses import dataclass

from distbench.core.case import Case
from distbench.core.case import PluginChoice as Plugin
from distbench.record import Record
from support.check_records import check_record, differing, reference, rounding
from support.records import case, measured

MIB = 2**20
SINGLE, DDP, FSDP = case("single", 1), case("ddp"), case("fsdp")
ZERO2 = case("zero2", strategy=Plugin("zero", {"stage": 2}))
ZERO3 = case("zero3", strategy=Plugin("zero", {"stage": 3}))
OFFLOAD = case("zero3+offload", strategy=Plugin("zero", {"stage": 3, "offload_optimizer": "cpu"}))


def trials(of: Case, *speeds: float, mib: float = 100, **values: float) -> list[Record]:
    """Return a record for each of *speeds* (tokens/s), with a peak of *mib*."""
    return [measured(of, speed, round_=i, memory_peak=mib * MIB, **values) for i, speed in enumerate(speeds)]


@dataclass(frozen=True)
class Known:
    """Records, what is wished for, and what must be answered."""

    records: list[Record]
    pick: str
    """Short name; empty: nothing can be taken."""
    says: tuple[str, ...]
    """What must stand in the answer."""
    mib: float | None = None
    """Memory of a device."""
    alike: tuple[str, ...] = ()
    """What is within the noise of the best, the pick among them; only the pick if empty."""


KNOWN = {
    "a tie": Known(
        [*trials(ZERO2, 1000, 1010, 990), *trials(DDP, 985, 995, 1005)],
        "ddp",
        (
            "Train with ddp on 2 devices, tied with zero2: 995 (",
            "zero2 is statistically tied with ddp (zero2: 1.005x (",
            "which is the simplest case within 2% of the best cautious estimate.",
        ),
        alike=("zero2", "ddp"),
    ),
    "a budget in which nothing fits": Known(
        [*trials(DDP, 1000, 1010, 990, mib=300), *trials(ZERO3, 500, 510, 490, mib=200)],
        "",
        ("No measured case fits in 199 MiB: the one with the lowest memory, zero3, needs 200 MiB.",),
        mib=199,
    ),
    "trains differently": Known(
        [
            *trials(SINGLE, 10),
            *trials(DDP, 1000, 1010, 990),
            *trials(ZERO2, 2000, 2010, 1990),
            reference(),
            differing(ZERO2),
            check_record(DDP, "case", {"case": rounding}),
        ],
        "ddp",
        (
            "zero2 was faster, but is not recommended: equivalence: differs",
            "Equivalence: equivalent within rounding",
        ),
    ),
    # zero2 is the faster one, and not the simpler: a tie would take ddp
    "a trial that is far too fast": Known(
        [*trials(ZERO2, 1500, 1510, 1490), *trials(DDP, 1000, 1010, 9000), *trials(FSDP, 700, 705, 695)],
        "zero2",
        ("Train with zero2 on 2 devices: 1,",),
    ),
    "a trial that is far too slow": Known(
        [*trials(ZERO2, 1500, 1510, 90), *trials(DDP, 1000, 1010, 990), *trials(FSDP, 700, 705, 695)],
        "zero2",
        ("Train with zero2 on 2 devices: 1,",),
    ),
    "offload as the only fit": Known(
        [
            *trials(DDP, 1000, 1010, 990, mib=800),
            *trials(ZERO3, 700, 710, 690, mib=400),
            *trials(OFFLOAD, 350, 355, 345, mib=100),
        ],
        "zero3+offload",
        ("Train with zero3+offload on 2 devices: 350 (", "It is the only case that can be recommended."),
        mib=200,
    ),
}

from __future__ import annotations

from dataclasses import dataclass

from distbench.core.case import Device
from distbench.core.machine import Machine
from distbench.ipc.launch_spec import LaunchSpec
from distbench.launchers.base import LaunchSession
from distbench.launchers.local import Local
from distbench.launchers.pretend import Pretend
from distbench.system.machine import detect_machine

DEVICES_OF_A_NODE = 2


@dataclass(frozen=True)
class Rack(Pretend):
    """Two nodes with two devices each, which are not this machine; what it starts is pretended."""

    real: bool = False
    """Start ranks after all, on this machine."""

    def machine(self, device: str) -> Machine:
        return Machine(
            "cpu", 4, detect_machine("cpu").packages, False, True, cores=DEVICES_OF_A_NODE, nodes=2
        )

    def node_count(self, processes: int, device: Device) -> int:
        return -(-processes // DEVICES_OF_A_NODE)

    def problem(self, processes: int, machine: Machine) -> str | None:
        return None if processes <= machine.devices else f"the rack has {machine.devices} devices"

    def commands(self, spec: LaunchSpec) -> list[list[str]]:
        return [["rack", f"node{node}", str(spec.instructions)] for node in range(spec.nodes)]

    def open_session(self, run_id: str) -> LaunchSession:
        return Local().open_session(run_id) if self.real else super().open_session(run_id)

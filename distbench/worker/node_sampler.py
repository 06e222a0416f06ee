"""What metrics sample on one node while a trial runs there, from outside of its ranks.

The agent of the node does here what the command does where ranks are on its own machine. Rows are kept on the
node until the trial has ended, so that nothing of it is on the network while ranks are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from distbench.core import registry
from distbench.core.case import Case, PluginChoice
from distbench.ipc.trial_files import TrialInstructions
from distbench.launchers.base import LaunchError, LaunchSpec
from distbench.metrics.base import Metric, Sampler, sampler_failure

# rows of a message: a long trial on many GPUs is larger than one message may be
_ROWS_PER_MESSAGE = 1000


class NodeSamplers:
    """The samplers of a trial on one node."""

    def __init__(self, launch: LaunchSpec) -> None:
        """Begin, with the metrics of the trial's file.

        Args:
            launch: The ranks that the node starts.

        Raises:
            LaunchError: a metric can't.
        """
        trial = TrialInstructions.read(launch.instructions)
        case = replace(trial.case, world_size=_local_devices(trial.case, launch))
        self._samplers: dict[str, Sampler] = {}
        try:
            for choice in trial.metrics:
                self._start(choice, case)
        except LaunchError:
            self.stop()
            raise

    def stop(self) -> list[dict[str, Any]]:
        """End the sampling; return the messages that tell what was sampled."""
        return [piece for name, sampler in self._samplers.items() for piece in _messages(name, sampler)]

    def _start(self, choice: PluginChoice, case: Case) -> None:
        try:
            metric: Metric = registry.create_plugin("metrics", choice)
            sampler = metric.sampler(case)
        except Exception as error:
            # whatever a plug-in or a driver's library raises is told where the run is
            raise LaunchError(sampler_failure(choice.name, error)) from error
        if sampler:
            self._samplers[choice.name] = sampler


def _local_devices(case: Case, launch: LaunchSpec) -> int:
    """Devices of *case* that the processes of *launch* have on this node: one may have all of them."""
    assert launch.ranks
    return case.world_size * launch.ranks.count // launch.ranks.world_size


def _messages(name: str, sampler: Sampler) -> list[dict[str, Any]]:
    try:
        rows = sampler.stop()
    except Exception as error:
        return [{"samples": name, "reason": sampler_failure(name, error)}]
    return [
        {"samples": name, "rows": rows[i : i + _ROWS_PER_MESSAGE]}
        for i in range(0, len(rows), _ROWS_PER_MESSAGE)
    ]

"""Metric samplers of one node, outside of its ranks.

The agent of the node runs them as the command does for ranks on its own machine. Rows are kept on the node
until the trial has ended, so that they don't use the network while ranks do.
"""

from __future__ import annotations

from dataclasses import replace

from distbench.core import registry
from distbench.core.case import Case, PluginChoice
from distbench.ipc.launch_spec import LaunchSpec, RankRange
from distbench.ipc.messages import Message, SampledRows, SamplerFailure
from distbench.ipc.trial_files import TrialInstructions
from distbench.launchers.base import LaunchError
from distbench.metrics.base import Metric, Sampler, sampler_failure

# rows per message: all rows of a long trial on many GPUs exceed the maximum size of a message
_ROWS_PER_MESSAGE = 1000


class NodeSamplers:
    """Samplers of a trial on one node."""

    def __init__(self, spec: LaunchSpec) -> None:
        """Start sampling for the ranks that the node starts, with the metrics in the trial's file.

        Raises:
            LaunchError: a metric can't be sampled.
        """
        trial = TrialInstructions.read(spec.instructions)
        case = replace(trial.case, world_size=_local_devices(trial.case, spec.local_ranks))
        self._samplers: dict[str, Sampler] = {}
        try:
            for choice in trial.metrics:
                self._start(choice, case)
        except LaunchError:
            self.stop()
            raise

    def stop(self) -> list[Message]:
        """End the sampling; return the messages with the samples."""
        return [piece for name, sampler in self._samplers.items() for piece in _messages(name, sampler)]

    def _start(self, choice: PluginChoice, case: Case) -> None:
        try:
            metric: Metric = registry.create_plugin("metrics", choice)
            sampler = metric.sampler(case)
        except Exception as error:
            # whatever a plug-in or a driver's library raises is reported to the controller
            raise LaunchError(sampler_failure(choice.name, error)) from error
        if sampler:
            self._samplers[choice.name] = sampler


def _local_devices(case: Case, ranks: RankRange) -> int:
    """Devices of *case* that *ranks* have on this node; one process may have them all."""
    return case.world_size * ranks.count // ranks.world_size


def _messages(name: str, sampler: Sampler) -> list[Message]:
    try:
        rows = sampler.stop()
    except Exception as error:
        return [SamplerFailure(name, sampler_failure(name, error))]
    return [
        SampledRows(name, tuple(rows[i : i + _ROWS_PER_MESSAGE]))
        for i in range(0, len(rows), _ROWS_PER_MESSAGE)
    ]

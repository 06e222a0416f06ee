"""What metrics sample on one node while a trial runs there, from outside of its ranks.

The agent of the node does here what the command does where ranks are on its own machine. Rows are kept on the
node until the trial has ended, so that nothing of it is on the network while ranks are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from distbench.core import registry
from distbench.core.case import Case, Choice
from distbench.ipc.trial_files import TrialFile
from distbench.launchers.base import Launch, LaunchError
from distbench.metrics.base import Metric, Sampler, sampler_failure

# rows of a message: a long trial on many GPUs is larger than one message may be
_ROWS = 1000


class Sampling:
    """The samplers of a trial on one node."""

    def __init__(self, launch: Launch) -> None:
        """Begin, with the metrics of the trial's file.

        Args:
            launch: The ranks that the node starts.

        Raises:
            LaunchError: a metric can't.
        """
        trial = TrialFile.read(launch.file)
        case = replace(trial.case, world_size=_devices(trial.case, launch))
        self._samplers: dict[str, Sampler] = {}
        try:
            for choice in trial.metrics:
                self._begin(choice, case)
        except LaunchError:
            self.stop()
            raise

    def stop(self) -> list[dict[str, Any]]:
        """End the sampling; return the messages that tell what was sampled."""
        return [piece for name, sampler in self._samplers.items() for piece in _pieces(name, sampler)]

    def _begin(self, choice: Choice, case: Case) -> None:
        try:
            metric: Metric = registry.make("metrics", choice)
            sampler = metric.sampler(case)
        except Exception as error:
            # whatever a plug-in or a driver's library raises is told where the run is
            raise LaunchError(sampler_failure(choice.name, error)) from error
        if sampler:
            self._samplers[choice.name] = sampler


def _devices(case: Case, launch: Launch) -> int:
    """Devices of *case* that the processes of *launch* have on this node: one may have all of them."""
    assert launch.share
    return case.world_size * launch.share.count // launch.share.world_size


def _pieces(name: str, sampler: Sampler) -> list[dict[str, Any]]:
    try:
        rows = sampler.stop()
    except Exception as error:
        return [{"samples": name, "reason": sampler_failure(name, error)}]
    return [{"samples": name, "rows": rows[i : i + _ROWS]} for i in range(0, len(rows), _ROWS)]

"""The fork servers of the session: most tests are about trials, and not about how their parent starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from unittest import mock

from distbench.ipc.launch_spec import LaunchSpec
from distbench.launchers.base import CancelCheck, LaunchSession, RunningLaunch, never_cancelled
from distbench.launchers.fork_server_client import ForkServerClient
from distbench.launchers.local import Local, _LocalSession
from distbench.record.run_folder import new_run_id

_AT_FIRST = dict(os.environ)
# pytest names the test in it; torch._inductor sets a folder of its own as it is imported here
_NOT_OF_A_TEST = ("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR")
_READ_BY_RANKS = (
    *("ACCELERATE_", "CORRECTED", "DISTBENCH_CACHE", "PYTHONPATH", "SMALL_"),
    # secrets of a test, which nobody reads
    *("AWS_SECRET", "NCCL_AUTH_TOKEN"),
)
"""Beginnings of the names of variables that models and ranks read, and no module as it is imported."""
_IMPORTED_BY_RANKS = {
    "accelerate": ("deepspeed",),
    "transformers": ("distbench.workloads._hf_model",),
    "transformers.trainer": ("deepspeed",),
}
"""Module that a fork server imports -> what each rank would import because of it, for a second or two;
``local`` does not import it early, as it might initialise CUDA before the ranks fork."""
_open: list[LaunchSession] = []


class KeptSite(LaunchSession):
    """Starts the trials of a run from fork servers that outlive it."""

    def launch(self, spec: LaunchSpec, is_cancelled: CancelCheck = never_cancelled) -> RunningLaunch:
        folder = spec.target.working_directory or str(Path.cwd())
        target = replace(spec.target, working_directory=folder)
        changed = {**_changed(), **spec.environment}
        more = [name for each in spec.imports for name in _IMPORTED_BY_RANKS.get(each, ())]
        kept = replace(spec, environment=changed, target=target, imports=(*spec.imports, *more))
        return _site().launch(kept, is_cancelled)

    def close(self) -> None:
        """Keep them for the next run."""


class _KeptServers(_LocalSession):
    """A fork server for each set of imports, and not for each value of a variable that only ranks read."""

    def _server_for(
        self, spec: LaunchSpec, is_cancelled: CancelCheck, log_text: str = ""
    ) -> ForkServerClient:
        if spec.target.python != sys.executable:
            # which finds distbench by PYTHONPATH
            return super()._server_for(spec, is_cancelled, log_text)
        target = replace(spec.target, environment=_without_read_by_ranks(spec.target.environment))
        shared = replace(spec, environment=_without_read_by_ranks(spec.environment), target=target)
        first = {name: value for name, value in _AT_FIRST.items() if _is_read_by_ranks(name)}
        with mock.patch.dict(os.environ, {**_without_read_by_ranks(os.environ), **first}, clear=True):
            return super()._server_for(shared, is_cancelled, log_text)


def close() -> None:
    """End all fork servers of the session."""
    while _open:
        _open.pop().close()


def _site() -> LaunchSession:
    if not _open:
        _open.append(_KeptServers(Local(), new_run_id()))
    return _open[0]


def _changed() -> dict[str, str]:
    """Variables that the test has set, and a parent that was started earlier does not have."""
    return {
        name: value
        for name, value in os.environ.items()
        if _AT_FIRST.get(name) != value and name not in _NOT_OF_A_TEST
    }


def _is_read_by_ranks(name: str) -> bool:
    return name.startswith(_READ_BY_RANKS)


def _without_read_by_ranks(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if not _is_read_by_ranks(name)}

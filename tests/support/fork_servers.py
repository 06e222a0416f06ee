"""The fork servers of the session: most tests are about trials, and not about how their parent starts."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from distbench.ipc.launch_spec import LaunchSpec
from distbench.launchers.base import CancelCheck, LaunchSession, RunningLaunch, never_cancelled
from distbench.launchers.local import Local
from distbench.record.run_folder import new_run_id

_AT_FIRST = dict(os.environ)
# pytest names the test in it; torch._inductor sets a folder of its own as it is imported here
_NOT_OF_A_TEST = ("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR")
_open: list[LaunchSession] = []


class KeptSite(LaunchSession):
    """Starts the trials of a run from fork servers that outlive it."""

    def launch(self, spec: LaunchSpec, is_cancelled: CancelCheck = never_cancelled) -> RunningLaunch:
        folder = spec.target.working_directory or str(Path.cwd())
        target = dataclasses.replace(spec.target, working_directory=folder)
        changed = {**_changed(), **spec.environment}
        # ranks import it for two seconds each; `local` does not, as it might initialise CUDA before they fork
        more = ("distbench.workloads._hf_model",) if "transformers" in spec.imports else ()
        kept = dataclasses.replace(spec, environment=changed, target=target, imports=(*spec.imports, *more))
        return _site().launch(kept, is_cancelled)

    def close(self) -> None:
        """Keep them for the next run."""


def close() -> None:
    """End all fork servers of the session."""
    while _open:
        _open.pop().close()


def _site() -> LaunchSession:
    if not _open:
        _open.append(Local().open_session(new_run_id()))
    return _open[0]


def _changed() -> dict[str, str]:
    """Variables that the test has set, and a parent that was started earlier does not have."""
    return {
        name: value
        for name, value in os.environ.items()
        if _AT_FIRST.get(name) != value and name not in _NOT_OF_A_TEST
    }

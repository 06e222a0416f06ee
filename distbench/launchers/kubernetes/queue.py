"""Runs in a namespace, asked for and fetched by kubectl."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from distbench.core.errors import InfrastructureError, UsageError
from distbench.launchers.base import JobQueue, QueuedJob
from distbench.launchers.kubernetes.controller_command import ENDED
from distbench.launchers.kubernetes.folder_copy import archive_command, extract
from distbench.launchers.kubernetes.manifests import OBJECT_KINDS, ROLE_LABEL, RUN_LABEL
from distbench.launchers.kubernetes.pod_states import ApiObject, run_state
from distbench.system.files import infrastructure_errors, write_atomic

CREATE_COMMAND = (
    "kubectl",
    "create",
    "--filename=-",
    '--output=jsonpath={.metadata.namespace}/{.kind}/{.metadata.name}{"\\n"}',
)
"""Reads manifests and prints the namespace, kind and name of each object."""

_NAME = re.compile(r"([a-z0-9-]{1,63})/(job|jobset)/([a-z0-9-]{1,63})")
_ANSWER_TIMEOUT_S = 30.0
_COPY_TIMEOUT_S = 1800.0
_COPY_TRIES = 3
_PAUSE_S = 2.0
# a file gets its time before its name
_OVERLAP_S = 10.0
_PROGRESS_FILE = "progress.jsonl"


class KubernetesQueue(JobQueue):
    """Runs of the cluster of kubectl's context: ``NAMESPACE/job/NAME`` or ``NAMESPACE/jobset/NAME``."""

    def __init__(self) -> None:
        self._pull_errors: dict[str, str] = {}

    def parse_job_name(self, printed: str) -> str:
        found = [line.split("/") for line in printed.split() if line.count("/") == 2]
        if not found:
            raise ValueError(f"kubectl named no object: {printed!r}")
        namespace, _, name = found[0]
        # the names of jobs are longer
        kind = "jobset" if any(each[1] == "JobSet" for each in found) else "job"
        return f"{namespace}/{kind}/{name}"

    def query(self, name: str) -> QueuedJob | None:
        objects = self._get(name, "jobs,pods", f"--selector={_selector(name)}")
        if objects is None:
            return None
        state = run_state(objects, self._pull_errors)
        if state.state == "running" and (code := self._end_of_run(name)) is not None:
            # its pod stays so that the run can be fetched
            return QueuedJob("ended", f"{'Failed' if code else 'Succeeded'}", code)
        if state.state == "waiting" and not any(each["kind"] == "Pod" for each in objects):
            why = self._last_warning(name)
            return replace(state, state_text=f"{state.state_text}: {why}") if why else state
        return state

    def cancel_command(self, name: str) -> list[str]:
        _, kind, _ = _split_name(name)
        # what remains of the pods may still be fetched
        waits = ["--wait=false", "--ignore-not-found"]
        return _kubectl(name, "delete", OBJECT_KINDS[kind], f"--selector={_selector(name)}", *waits)

    def log_files(self, name: str, folder: Path) -> tuple[Path, Path]:
        _, _, run = _split_name(name)
        return folder / f"{run}.out", folder / f"{run}.err"

    def fetch(self, name: str, folder: Path, *, has_ended: bool) -> None:
        _, _, run = _split_name(name)
        agents_log = folder / f"{run}-agents.log"
        if not has_ended:
            with suppress(InfrastructureError):
                if pod := self._controller_pod(name):
                    self._copy(name, pod, folder, _last_time(folder))
        # written last: with it, all of the run is here
        elif not agents_log.exists():
            self._copy_all(name, folder)
            # they go with their pods
            chosen = f"--selector={_selector(name, 'agent')}"
            printed = _call(_kubectl(name, "logs", chosen, "--prefix", "--tail=-1", "--ignore-errors"))
            with infrastructure_errors(agents_log):
                write_atomic(agents_log, printed.stdout if printed else "")
            _call(self.cancel_command(name))

    def _copy_all(self, name: str, folder: Path) -> None:
        """Copy all of the run's *folder*; try again where a connection is lost.

        Raises:
            InfrastructureError: there is no pod, or not all of its files came.
        """
        for further in reversed(range(_COPY_TRIES)):
            pod = self._controller_pod(name)
            if pod is None:
                printed = _call(_kubectl(name, "logs", _controller_of(name), "--tail=20"))
                last = printed.stdout.strip() if printed else ""
                raise InfrastructureError(
                    f"{folder}: not all of the run could be fetched, because its pod does not run any more"
                    f"{f'; it printed: {last}' if last else ''}",
                    "distbench attach RUN --cancel removes what is left of it there",
                )
            try:
                return self._copy(name, pod, folder, None)
            except InfrastructureError:
                if not further:
                    raise
                time.sleep(_PAUSE_S)
        return None

    def _copy(self, name: str, pod: str, folder: Path, since: float | None) -> None:
        """Copy the run's *folder* from its *pod*, if *since* is given only what is newer.

        Raises:
            InfrastructureError: not all of its files came.
        """
        command = _kubectl(name, "exec", pod, "--container=controller", "--", *archive_command(folder, since))
        code: int | None = None
        with tempfile.TemporaryFile() as errors:
            # an archive that was cut has no exit code, whatever kubectl says
            with _started(command, errors) as process, suppress(tarfile.TarError):
                assert process.stdout
                with infrastructure_errors(folder):
                    extract(process.stdout, folder)
                code = process.wait()
            errors.seek(0)
            message = " ".join(errors.read().decode(errors="replace").split())
        # while the run goes on, files change under the hands of tar
        if code != 0 and since is None:
            raise InfrastructureError(
                f"{folder}: not all of the run was fetched: {message or 'kubectl failed'}"
            )

    def _end_of_run(self, name: str) -> int | None:
        """Exit code of the run, if it has ended and its pod stays."""
        last = _call(_kubectl(name, "logs", _controller_of(name), "--tail=1"))
        found = ENDED.search(last.stdout) if last else None
        return int(found[1]) if found else None

    def _controller_pod(self, name: str) -> str | None:
        """Name of the controller's pod; None: it does not run.

        Raises:
            InfrastructureError: the cluster does not answer.
        """
        running = "--field-selector=status.phase=Running"
        listed = _call(_kubectl(name, "get", "pods", _controller_of(name), running, "--output=name"))
        if listed is None or listed.returncode:
            message = (
                " ".join(listed.stderr.split()) if listed else f"no answer within {_ANSWER_TIMEOUT_S:g} s"
            )
            raise InfrastructureError(f"kubectl can't find the pod of {name}: {message}", "try again later")
        return next(iter(listed.stdout.split()), None)

    def _last_warning(self, name: str) -> str:
        """Reason why a job has no pod, such as a quota."""
        _, _, run = _split_name(name)
        events = self._get(name, "events", "--field-selector=type=Warning") or []
        own = [each for each in events if each["involvedObject"].get("name", "").startswith(f"{run}-")]
        return " ".join(f"{own[-1].get('reason', '')}: {own[-1].get('message', '')}".split()) if own else ""

    def _get(self, name: str, kinds: str, chosen: str) -> Sequence[ApiObject] | None:
        """Objects of these *kinds*; None: no answer."""
        answer = _call(_kubectl(name, "get", kinds, chosen, "--output=json"))
        if answer is None or answer.returncode:
            return None
        try:
            items: list[dict[str, Any]] = json.loads(answer.stdout)["items"]
        except (ValueError, KeyError):
            return None
        return items


def _call(command: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """Run *command*; None: it does not end in time.

    Raises:
        InfrastructureError: kubectl is not installed.
    """
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=_ANSWER_TIMEOUT_S,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return None
    except OSError as error:
        raise _not_started(error) from error


@contextmanager
def _started(command: Sequence[str], errors: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Start *command*; end it with the body, or when it takes too long."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
    except OSError as error:
        raise _not_started(error) from error
    deadline = threading.Timer(_COPY_TIMEOUT_S, process.kill)
    deadline.start()
    try:
        yield process
    finally:
        deadline.cancel()
        process.kill()
        process.communicate()


def _not_started(error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"kubectl: can't be started: {error.strerror}", "install it, with access to the cluster of the run"
    )


def _last_time(folder: Path) -> float:
    """Time of the pod up to which the files of *folder* have been fetched."""
    try:
        return max(0.0, (folder / _PROGRESS_FILE).stat().st_mtime - _OVERLAP_S)
    except OSError:
        return 0.0


def _kubectl(name: str, *arguments: str) -> list[str]:
    namespace, _, _ = _split_name(name)
    return ["kubectl", f"--namespace={namespace}", *arguments]


def _controller_of(name: str) -> str:
    return f"--selector={_selector(name, 'controller')}"


def _selector(name: str, role: str = "") -> str:
    _, _, run = _split_name(name)
    return f"{RUN_LABEL}={run}{f',{ROLE_LABEL}={role}' if role else ''}"


def _split_name(name: str) -> tuple[str, str, str]:
    """Namespace, kind and name of the run in *name*.

    Raises:
        UsageError: *name* is not the name of a run on Kubernetes.
    """
    if not (found := _NAME.fullmatch(name)):
        raise UsageError(f"{name!r}: not a run on Kubernetes, such as default/job/distbench-zero-1f2e3d")
    return found[1], found[2], found[3]

"""The process between a command and the dashboard of a Ray cluster, which takes jobs over HTTP.

submit {"address": ..., "job": {...}}    submit a job that runs the script of the standard input; print ID@URL
status ID@URL                            print the job as JSON; null if the cluster does not know it
stop ID@URL                              end it

https://docs.ray.io/en/latest/cluster/running-applications/job-submission/rest.html

A host without Ray can submit if it has the URL of the dashboard.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from distbench.core.errors import DistbenchError
from distbench.core.text import one_line
from distbench.launchers.ray import query_cluster
from distbench.launchers.ray.jobs import split_job_name

_ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
"""Variables that Ray's own commands read, the first one first."""
_LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
_TIMEOUT_S = 30.0
_SUBMIT_TIMEOUT_S = 120.0


class DashboardError(DistbenchError):
    """The dashboard is not found, does not answer, or refuses; the message is the reason, with a remedy."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; 0: no answer."""


def _submit(request: Mapping[str, Any], script: str) -> str:
    """Submit *script*; return the name of the job."""
    url, job = _dashboard_url(request["address"]), request["job"]
    _call(url, "/api/jobs/", {**job, "entrypoint": script}, _SUBMIT_TIMEOUT_S)
    return f"{job['submission_id']}@{url}"


def _status(name: str) -> str:
    """Job *name* as JSON."""
    number, url = split_job_name(name)
    try:
        return json.dumps(_call(url, f"/api/jobs/{quote(number)}"))
    except DashboardError as error:
        if error.status == http.HTTPStatus.NOT_FOUND:
            return "null"
        raise


def _stop(name: str) -> str:
    """End job *name*, if it has not ended."""
    number, url = split_job_name(name)
    _call(url, f"/api/jobs/{quote(number)}/stop", {})
    return ""


def _dashboard_url(address: str) -> str:
    """URL of the dashboard of the cluster at *address*; empty: that of the environment, or of this host.

    Raises:
        DashboardError: there is none.
    """
    api, ray = map(os.environ.get, _ADDRESS_VARIABLES)
    wanted = api or address or ray or ""
    if not wanted.startswith(("http://", "https://")):
        try:
            found = query_cluster("dashboard", wanted)
        except ConnectionError as error:
            cluster = f"at {wanted}" if wanted else "on this host"
            raise DashboardError(
                f"no Ray cluster answers {cluster}: {error}; set {_ADDRESS_VARIABLES[0]}=http://HEAD:8265"
            ) from error
        if not found:
            raise DashboardError(
                "the Ray cluster has no dashboard, which takes jobs; install ray[default] on its head node "
                "and start Ray there again"
            )
        wanted = f"http://{found}"
    return wanted.rstrip("/")


def _call(
    url: str, path: str, content: Mapping[str, Any] | None = None, timeout_s: float = _TIMEOUT_S
) -> dict[str, Any]:
    """Answer of the dashboard at *url* to a request for *path*; with *content*: to a POST of that.

    Raises:
        DashboardError: it refuses, or there is no answer.
    """
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(
        f"{url}{path}", data, {"Content-Type": "application/json", **_authorization(url)}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode(errors="replace")
        raise DashboardError(f"{url}: {_refusal(url, error.code, text)}", error.code) from error
    except (OSError, http.client.HTTPException, TypeError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise DashboardError(
            f"{url}: no Ray dashboard answers: {one_line(str(reason))}; start the head node with "
            "ray[default] installed, and --dashboard-host=0.0.0.0 to use it from other hosts"
        ) from error


def _refusal(url: str, status: int, text: str) -> str:
    """Reason for an answer of *status* with *text*, which often is a traceback."""
    if status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
        return f"Ray wants its token: set RAY_AUTH_TOKEN, and {_ADDRESS_VARIABLES[0]}={url}"
    lines = text.strip().splitlines()
    return f"HTTP {status}: {one_line(lines[-1])}" if lines else f"HTTP {status}"


def _authorization(url: str) -> dict[str, str]:
    """Header with Ray's token.

    It is sent to this host and to those of the environment, and to no other that a suite or a run names.
    """
    named = [os.environ[name] for name in _ADDRESS_VARIABLES if name in os.environ]
    is_trusted = _host(url) in (*_LOCAL_HOSTS, *map(_host, named))
    token = _token() if is_trusted else ""
    return {"Authorization": f"Bearer {token}"} if token else {}


def _host(address: str) -> str | None:
    return urlsplit(address if "://" in address else f"//{address}").hostname


def _token() -> str:
    """Ray's token, from where Ray looks for it; empty: there is none, or it is not to be used."""
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return ""
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token.strip()
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def main(command: str, argument: str) -> int:
    """Run one of the commands above; return its exit code."""
    commands: dict[str, Callable[[], str]] = {
        "submit": lambda: _submit(json.loads(argument), sys.stdin.read()),
        "status": lambda: _status(argument),
        "stop": lambda: _stop(argument),
    }
    try:
        print(commands[command](), flush=True)  # noqa: T201
    except DistbenchError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))

"""A dashboard of Ray that takes jobs: each begins at once on this machine, unless it is held."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass
class Job:
    """What was submitted, and what has become of it."""

    request: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None
    told: dict[str, Any] = field(default_factory=dict)
    """Replaces what is true."""

    def details(self) -> dict[str, Any]:
        """The job as Ray's API describes it."""
        code = self.process.poll() if self.process else None
        if self.process is None:
            true = {"status": "PENDING", "message": "Job has not started yet."}
        elif code is None:
            true = {"status": "RUNNING", "message": "Job is currently running."}
        elif code == 0:
            true = {"status": "SUCCEEDED", "message": "Job finished successfully."}
        else:
            message = f"Job entrypoint command failed with exit code {code}, last available logs:\n..."
            true = {"status": "FAILED", "message": message}
        return {**true, "driver_exit_code": code, **self.told}


class FakeRay:
    """The dashboard; ``jobs`` are those it has taken, by their ID."""

    def __init__(self, *, is_holding: bool = False) -> None:
        self.is_holding = is_holding
        self.jobs: dict[str, Job] = {}
        self.headers: list[dict[str, str]] = []
        self.refusal: tuple[int, str] | None = None
        """Answer to every request."""
        dashboard = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self._answer(self.rfile.read(int(self.headers["Content-Length"])))

            def do_GET(self) -> None:
                self._answer(None)

            def _answer(self, content: bytes | None) -> None:
                dashboard.headers.append(dict(self.headers))
                status, text = dashboard.refusal or dashboard.answer(self.path, content)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("", 0), Handler)
        Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def only_job(self) -> tuple[str, Job]:
        """ID of the only job, and the job."""
        (only,) = self.jobs.items()
        return only

    def answer(self, path: str, content: bytes | None) -> tuple[int, str]:
        """Status and text for a request."""
        if path == "/api/jobs/" and content is not None:
            job = Job(json.loads(content))
            if not self.is_holding:
                job.process = subprocess.Popen(
                    job.request["entrypoint"],
                    shell=True,
                    env={**os.environ, "RAY_ADDRESS": "there:6379"},
                    stdin=subprocess.DEVNULL,
                )
            self.jobs[job.request["submission_id"]] = job
            return 200, json.dumps({"submission_id": job.request["submission_id"]})
        number, _, verb = path.removeprefix("/api/jobs/").partition("/")
        if number not in self.jobs:
            return 404, f"Job {number} does not exist"
        if verb == "stop" and content is not None:
            self.jobs[number].told = {"status": "STOPPED", "message": "Job was intentionally stopped."}
            return 200, json.dumps({"stopped": True})
        return 200, json.dumps(self.jobs[number].details())

    def close(self) -> None:
        """End it, and wait for its jobs."""
        self._server.shutdown()
        self._server.server_close()
        for job in self.jobs.values():
            if job.process:
                job.process.wait()

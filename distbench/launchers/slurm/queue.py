"""The jobs of Slurm, as ``scontrol show job`` describes them (https://slurm.schedmd.com/scontrol.html)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Literal

from distbench.core.errors import UsageError
from distbench.launchers.base import JobQueue, QueuedJob

# https://slurm.schedmd.com/squeue.html, JOB STATE CODES; every other one is an end
_WAITING = (
    "PENDING",
    "CONFIGURING",
    "REQUEUED",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "RESV_DEL_HOLD",
    "SPECIAL_EXIT",
)
_RUNNING = ("RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED")
ANSWER_TIMEOUT_S = 30.0
_NAME = re.compile(r"[0-9]+(;[\w.-]+)?")


class SlurmQueue(JobQueue):
    """Jobs of the cluster that the commands of Slurm find, or of another one: ``17`` or ``17;NAME``."""

    def parse_job_name(self, printed: str) -> str:
        # a site's sbatch may print other lines as well
        for line in reversed(printed.split()):
            if _NAME.fullmatch(line):
                return line
        raise ValueError(f"sbatch named no job: {printed!r}")

    def query(self, name: str) -> QueuedJob | None:
        number, cluster = _split_name(name)
        command = ["scontrol", *cluster, "--oneliner", "show", "job", number]
        try:
            asked = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                timeout=ANSWER_TIMEOUT_S,
                errors="replace",
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        if asked.returncode:
            # Slurm forgets a job some minutes after its end (MinJobAge)
            is_gone = "Invalid job id" in asked.stderr
            return QueuedJob("ended", "no longer known to Slurm") if is_gone else None
        return _parse_job(asked.stdout, cluster)

    def cancel_command(self, name: str) -> list[str]:
        number, cluster = _split_name(name)
        return ["scancel", *cluster, number]

    def log_files(self, name: str, folder: Path) -> tuple[Path, Path]:
        number, _ = _split_name(name)
        return folder / f"{number}.out", folder / f"{number}.err"


def job_seconds_left(number: str) -> float | None:
    """Seconds until job *number* reaches its time limit; None: it has none, or Slurm does not report it."""
    command = ["squeue", "--noheader", f"--jobs={number}", "--format=%L"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=ANSWER_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    # [[days-]hours:]minutes:seconds, or a word
    found = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)", asked.stdout.strip())
    if not found:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _parse_job(line: str, cluster: list[str]) -> QueuedJob | None:
    """Parse the job of *cluster* that ``scontrol`` describes on *line*."""
    fields = dict(re.findall(r"(?:^| )(JobState|Reason|ExitCode|NodeList)=(\S*)", line))
    word, reason = fields.get("JobState", ""), fields.get("Reason", "None")
    if word == "NODE_FAIL":
        # Slurm does not name the node
        reason = _down_nodes(fields.get("NodeList", ""), cluster) or reason
    if not word:
        return None
    state: Literal["waiting", "running", "ended"] = (
        "waiting" if word in _WAITING else "running" if word in _RUNNING else "ended"
    )
    code = _parse_exit_code(fields.get("ExitCode", "")) if state == "ended" else None
    if code == 0 and word != "COMPLETED":
        # caused by a lost node, or a limit that was reached, and not by the controller
        code = None
    return QueuedJob(state, word if reason == "None" else f"{word} ({reason})", code)


def _down_nodes(nodes: str, cluster: list[str]) -> str:
    """Those of *nodes* that are down, each with the reason; empty: none is, or unknown."""
    which = ["--noheader", "--Node", f"--nodes={nodes}", "--states=down", "--format=%N: %E"]
    try:
        asked = subprocess.run(
            ["sinfo", *cluster, *which], capture_output=True, text=True, check=False, timeout=ANSWER_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    # a node has a line in each of its partitions
    return "; ".join(dict.fromkeys(line.strip() for line in asked.stdout.splitlines()))


def _parse_exit_code(text: str) -> int | None:
    """Exit code in ``code:signal``."""
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if not found:
        return None
    code, signal = map(int, found.groups())
    return 128 + signal if signal else code


def _split_name(name: str) -> tuple[str, list[str]]:
    """Number of job *name*, and the option that names its cluster, if there is one.

    Raises:
        UsageError: *name* is not a job name of Slurm.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r}: not a Slurm job, such as 17 or 17;CLUSTER")
    number, _, cluster = name.partition(";")
    return number, [f"--clusters={cluster}"] if cluster else []

"""The process between a command and Spark: ``python -m distbench.launchers.spark.driver {...}``.

It keeps a barrier stage with a task for each node until the agents of all of them have ended. The token of
the agents comes by the standard input, and goes to the tasks in their closure. A task is the parent of its
agent, which ends with it, and so do the ranks.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from distbench.ipc.channels import NODE_VARIABLE
from distbench.launchers.nodes import AGENT_ARGUMENTS, forwarded_environment
from distbench.system.processes import die_with_parent


def _agent_task(
    arguments: Sequence[str], environment: Mapping[str, str], token: str, *, is_one_host: bool
) -> Callable[[Any], Iterator[int]]:
    """Task of a node: run an agent until it ends."""

    def serve(_: Any) -> Iterator[int]:
        context: Any = importlib.import_module("pyspark").BarrierTaskContext.get()
        host = socket.gethostname().partition(".")[0]
        name = f"{host}-{context.partitionId()}" if is_one_host else host
        agent = subprocess.Popen(
            [sys.executable, *arguments, str(os.getpid())],
            env={**os.environ, **environment, NODE_VARIABLE: name},
            stdin=subprocess.PIPE,
            text=True,
        )
        agent.communicate(f"{token}\n")
        yield agent.returncode

    return serve


def main(request: dict[str, Any]) -> int:
    """Run the stage of *request*; return its exit code."""
    die_with_parent(os.getppid())
    token = sys.stdin.readline().strip()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # it has types in some versions only
    sql: Any = importlib.import_module("pyspark.sql")
    # a stage that is tried again would start agents of a trial that is over
    conf = {**request["conf"], "spark.task.maxFailures": "1", "spark.stage.maxConsecutiveAttempts": "1"}
    builder = sql.SparkSession.builder.appName("distbench")
    for name, value in conf.items():
        builder = builder.config(name, value)
    session = (builder.master(request["master"]) if request["master"] else builder).getOrCreate()
    context = session.sparkContext
    serve = _agent_task(
        AGENT_ARGUMENTS, forwarded_environment(), token, is_one_host=context.master.startswith("local")
    )
    tasks = request["tasks"]
    codes = context.parallelize(range(tasks), tasks).barrier().mapPartitions(serve).collect()
    session.stop()
    # negative for an agent that was ended by a signal
    return max((int(code) if code >= 0 else 128 - int(code) for code in codes), default=0)


if __name__ == "__main__":
    raise SystemExit(main(json.loads(sys.argv[1])))

"""Command line of worker processes: ``python -m distbench.worker COMMAND``.

serve DESCRIPTOR MODULE...   a fork server: imports MODULEs, then forks ranks on request
agent [PID]                  the agent of a run on a node; it ends with process PID, 0: its parent
rank TRIAL_FILE              one rank, placed by RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
examine FILE                 one rank of a diagnosis, placed as those of a trial
prepare FILE                 build C++ ops and initial weights
construct FILE               construct the user's models, and write their problems
trace-memory FILE            trace the peak memory of steps on fake tensors, and print it
export FILE                  send curves to an experiment tracker
"""

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import get_args

from distbench.ipc.launch_spec import WorkerCommand
from distbench.system.cache import cache_folder
from distbench.system.machine import search_path
from distbench.system.rank_variables import drop_rank_variables


def main(arguments: list[str]) -> None:
    """Run one of the commands above."""
    os.environ["PATH"] = search_path()
    # after all other folders: see WORKER_ARGUMENTS; a removed folder has no modules
    with suppress(OSError):
        sys.path.append(str(Path.cwd()))
    command, *rest = arguments
    if command not in get_args(WorkerCommand):
        # none of these is a rank of the launcher that has started the command
        drop_rank_variables(os.environ)
    _set_inductor_cache()
    if command == "agent":
        from distbench.worker.agent import run_agent

        run_agent(int(rest[0]) if rest else None)
    elif command == "serve":
        from distbench.worker.fork_server import run_fork_server

        run_fork_server(socket.socket(fileno=int(rest[0])), rest[1:])
    elif command in get_args(WorkerCommand):
        from distbench.worker.fork_server import run_command

        run_command(command, Path(rest[0]))
    elif command == "construct":
        from distbench.worker.construct import construct_models

        construct_models(Path(rest[0]))
    elif command == "trace-memory":
        from distbench.worker.memory_trace import trace_cases

        trace_cases(Path(rest[0]))
    elif command == "export":
        from distbench.worker.export import export

        export(Path(rest[0]))
    else:
        raise ValueError(f"unknown command {command!r}")


def _set_inductor_cache() -> None:
    """Have torch keep compiled code in distbench's cache, and not leave a folder elsewhere."""
    folder = cache_folder() / "inductor"
    # where the cache can't be used, torch's own default has to do
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


main(sys.argv[1:])

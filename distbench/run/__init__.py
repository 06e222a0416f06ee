"""A run: trials one after another, each launched, watched, collected and stored at once."""

from distbench.run.bench import Bench, to_build
from distbench.run.control import Observer, StopRequest, interruptible, unwarned
from distbench.run.launch import launch_for
from distbench.run.prepare import prepare
from distbench.run.trials import Execution

__all__ = [
    "Bench",
    "Execution",
    "Observer",
    "StopRequest",
    "interruptible",
    "launch_for",
    "prepare",
    "to_build",
    "unwarned",
]

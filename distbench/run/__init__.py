"""A run: trials one after another, each launched, watched, collected and stored at once."""

from distbench.run.bench import Bench, to_build
from distbench.run.control import Observer, Pace, Stopped, StopRequest, interruptible, unwarned
from distbench.run.deadline import Deadline
from distbench.run.launch import launch_for
from distbench.run.trials import Execution, make_all

__all__ = [
    "Bench",
    "Deadline",
    "Execution",
    "Observer",
    "Pace",
    "StopRequest",
    "Stopped",
    "interruptible",
    "launch_for",
    "make_all",
    "to_build",
    "unwarned",
]

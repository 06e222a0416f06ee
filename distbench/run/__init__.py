"""A run: trials one after another, each launched, watched, collected and stored at once."""

from distbench.run.control import Observer, Pace, Stopped, StopRequest, interruptible, unwarned
from distbench.run.deadline import Deadline
from distbench.run.execution import Execution, make_all
from distbench.run.launch import launch_for
from distbench.run.trial_runner import Bench, to_build

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

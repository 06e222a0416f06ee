"""A run: trials one after another, each launched, watched, collected and stored at once."""

from distbench.run.bench import Bench
from distbench.run.launch import launch_for
from distbench.run.observer import Observer
from distbench.run.prepare import prepare
from distbench.run.stop import StopRequest
from distbench.run.trials import Outcome, execute

__all__ = ["Bench", "Observer", "Outcome", "StopRequest", "execute", "launch_for", "prepare"]

"""What state this host is in: what training stumbles over, looked up without torch and in milliseconds."""

from distbench.condition.gpus import GpuCondition
from distbench.condition.host import Condition, condition_of

__all__ = ["Condition", "GpuCondition", "condition_of"]

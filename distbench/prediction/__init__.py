"""Memory and step time of a case before it runs: from theory, a probe of the machine, or data sheets.

Nothing here imports torch. What can't be predicted has a reason in place of a number.
"""

from distbench.prediction.data_sheet import data_sheet_step
from distbench.prediction.estimates import NORMAL_95, MemoryPrediction, PredictedValue, StepPrediction, Term
from distbench.prediction.memory import predict_memory
from distbench.prediction.memory_fit import MemoryFit, fits, memory_advice

__all__ = [
    "NORMAL_95",
    "MemoryFit",
    "MemoryPrediction",
    "PredictedValue",
    "StepPrediction",
    "Term",
    "data_sheet_step",
    "fits",
    "memory_advice",
    "predict_memory",
]

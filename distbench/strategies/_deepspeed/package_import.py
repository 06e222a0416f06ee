"""Import DeepSpeed into the fork server of its ranks, without mlflow.

Only DeepSpeed's autotuner uses mlflow, but every import of DeepSpeed imports it if it is installed, which
takes seconds.
"""

import importlib
import sys
from typing import Any

_UNUSED = "mlflow"

_modules: dict[str, Any] = sys.modules
_is_hidden = _modules.setdefault(_UNUSED, None) is None
try:
    importlib.import_module("deepspeed")
finally:
    if _is_hidden:
        # a user's code may import it
        del _modules[_UNUSED]

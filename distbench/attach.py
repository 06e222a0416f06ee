"""``python -m distbench.attach train.py ...``: run a script that ``distbench measure`` measures.

For launchers that drop ``PYTHONPATH``. It is run as a program and never imported, so that
``distbench.attach`` is the function for scripts.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from distbench.worker.scripts.activation import wait_for_optimizer


def main() -> None:
    """Run the script, or with ``-m`` the module, that the arguments name."""
    words = sys.argv[1:]
    wait_for_optimizer()
    if words[:1] == ["-m"] and len(words) > 1:
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words:
        sys.argv = words
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")
    else:
        raise SystemExit("distbench: usage: python -m distbench.attach train.py ..., or -m MODULE ...")


if __name__ == "__main__":
    main()

"""The command line: parse, call, print. Only this package prints or chooses an exit code.

Exit codes: 0 every case measured or unsupported; 1 a case failed; 2 invalid request; 3 a requested judgement
is missing; 4 machine failure; 75 the time limit came first, resume it; 130 interrupted. Of the gate: 0 pass
or improved; 1 regressed, missing, invalid or broken; 3 inconclusive; 5 incomparable.
"""

from distbench.cli.app import main

__all__ = ["main"]

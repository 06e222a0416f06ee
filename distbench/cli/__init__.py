"""The command line: parse, call, print. The only place that prints or picks an exit code.

Exit codes: 0 all measured or unsupported; 1 a case failed; 2 something asked for can't be done;
4 the machine failed us; 130 interrupted. Of the gate: 0 pass or improved; 1 regressed, missing,
invalid or broken; 3 inconclusive; 5 incomparable.
"""

from distbench.cli.entry import main

__all__ = ["main"]

"""The functions of ``import distbench``: runs, their tables and figures, traces. The command is a client."""

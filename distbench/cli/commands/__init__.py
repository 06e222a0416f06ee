"""One file for each command of ``distbench``, named as the command."""

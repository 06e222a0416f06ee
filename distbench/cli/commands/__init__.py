"""One file for each command of ``distbench``, called as the command."""

"""Analysis of the records of runs."""

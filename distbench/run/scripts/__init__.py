"""Run a script that someone wrote, measure its ranks, and keep the result as a run."""

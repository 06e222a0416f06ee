"""The gate: candidate and baseline run side by side, judged by the rules of the suite."""

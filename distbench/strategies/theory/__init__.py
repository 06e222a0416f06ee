"""Expected traffic and memory of parallel techniques. Imports no torch."""

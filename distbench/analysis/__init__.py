"""What records mean: pure functions, nothing read and nothing written."""

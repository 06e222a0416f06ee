"""Communication of a run's processes: files in its folder, messages between nodes. Without torch."""

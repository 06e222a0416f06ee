"""Worker processes: everything that imports torch to run a trial."""

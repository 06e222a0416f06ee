"""Pages and summaries of runs: a table for the terminal, one offline page for a browser."""

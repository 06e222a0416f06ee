"""Records made readable: a table for the terminal, one offline page for a browser."""

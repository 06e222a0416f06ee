"""Charts as plotly figures: plain data."""

"""Job kinds: one package each, from options to results and view."""

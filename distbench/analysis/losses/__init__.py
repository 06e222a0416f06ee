"""Losses of the timed trials, compared with references and with each other."""

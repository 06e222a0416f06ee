"""Traces of any training as an ordinary run."""

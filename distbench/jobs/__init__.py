"""Kinds of job: what a trial can be for, one folder each, from its options to its view."""

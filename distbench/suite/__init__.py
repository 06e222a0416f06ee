"""Suites: YAML to a typed suite. The only place where defaults are decided."""

from distbench.suite.overrides import Overrides
from distbench.suite.suite import Suite, load_suite, parse_suite_text

__all__ = ["Overrides", "Suite", "load_suite", "parse_suite_text"]

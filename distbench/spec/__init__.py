"""Suites: YAML to a typed suite. The only place where defaults are decided."""

from distbench.spec.overrides import Overrides
from distbench.spec.suite import Suite, load

__all__ = ["Overrides", "Suite", "load"]

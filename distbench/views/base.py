"""The seam of views as the registry finds it."""

from __future__ import annotations

from distbench.report.view import View

PLUGIN_BASE = View
HAS_OPTIONS = False
"""They are listed without being imported, which would import scipy."""

"""Tests of what the oldest supported releases lack."""

from __future__ import annotations

from importlib import metadata

import pytest

from distbench.core.machine import parse_release


def needs_release(package: str, release: str) -> pytest.MarkDecorator:
    """Skip a test where *package* is installed and older than *release*, and nowhere else.

    The release is a text in the test, so what a table of distbench declares can't skip a test by mistake.
    """
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        version = release
    is_older = parse_release(version) < parse_release(release)
    return pytest.mark.skipif(is_older, reason=f"needs {package} {release}; {version} is installed")

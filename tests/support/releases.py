"""Tests of what the oldest supported torch lacks."""

from __future__ import annotations

from importlib import metadata

import pytest

from distbench.core.machine import parse_release


def needs_torch(release: str) -> pytest.MarkDecorator:
    """Skip a test where torch is installed and older than *release*, and nowhere else.

    The release is a text in the test, so what a table of distbench declares can't skip a test by mistake.
    """
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        version = release
    is_older = parse_release(version) < parse_release(release)
    return pytest.mark.skipif(is_older, reason=f"needs torch {release}; {version} is installed")

"""Construct user models in a subprocess to check them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from distbench.cli.progress import observe_progress
from distbench.core.case import PluginChoice
from distbench.run.user_models import ConstructionError, ConstructionResult, construct_user_models


def constructed_models(
    models: Sequence[PluginChoice], device: str = "", computes: Sequence[str] = (), *, quiet: bool = False
) -> list[ConstructionResult]:
    """Construct each of *models* for *device*; empty, with a note, if that is not possible."""
    names = ", ".join(dict.fromkeys(str(each.options.get("model", each.name)) for each in models))
    began, item = time.monotonic(), f"importing {names}"
    with observe_progress(quiet=quiet) as watcher:
        watcher.build_started(item, 0, 1)
        try:
            found = construct_user_models(models, device, computes)
        except ConstructionError as error:
            watcher.note(f"{names}: not imported: {error}")
            return []
        failed = any(each.problem for each in found)
        watcher.build_ended(item, 0, 1, time.monotonic() - began, failed=failed)
        return found

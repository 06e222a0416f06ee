"""The user's own models, constructed in another process while a command waits."""

from __future__ import annotations

import time
from collections.abc import Sequence

from distbench.cli.progress import observer
from distbench.core.case import Choice
from distbench.run.user_models import Constructed, UntriedError, constructed


def constructed_models(
    models: Sequence[Choice], device: str = "", computes: Sequence[str] = (), *, quiet: bool = False
) -> list[Constructed]:
    """What comes of each of *models* on a *device*; nothing where they can't be tried, which is said."""
    names = ", ".join(dict.fromkeys(str(each.options.get("model", each.name)) for each in models))
    began, item = time.monotonic(), f"importing {names}"
    with observer(quiet=quiet) as watcher:
        watcher.item_started(item, 0, 1)
        try:
            found = constructed(models, device, computes)
        except UntriedError as error:
            watcher.note(f"{names}: not imported: {error}")
            return []
        failed = any(each.problem for each in found)
        watcher.item_ended(item, 0, 1, time.monotonic() - began, failed=failed)
        return found

"""Order, length and layout of the rows of a dataset, as arguments of the Trainer and of TRL's SFTConfig."""

from __future__ import annotations

from typing import Any

from distbench.suite.configurations.settings import Settings

LENGTHS = ("max_length", "max_seq_length")
"""Names of the tokens of a row at most, or of a packed one, in TRL; the second in older ones."""
_GROUPED = "group_by_length"
_CUT_ROWS = ("bfd_split", "bfd-requeue")


def row_tokens(settings: Settings) -> int | None:
    """Tokens of a row at most, or of a packed one; None: the arguments don't say it."""
    found = [tokens for name in LENGTHS if (tokens := settings.take_whole(name)) is not None]
    return found[0] if found else None


def row_options(settings: Settings, tokens: int | None) -> dict[str, Any]:
    """Options of a dataset that the arguments decide, in transformers 4 and 5 and in TRL.

    Args:
        settings: The arguments, of which those of rows are taken.
        tokens: Tokens of a row at most, which only TRL has; None: the arguments don't say it.

    Raises:
        SettingError: a value is neither true nor false.
    """
    is_packed = settings.take_flag("packing")
    strategy = str(settings.take("packing_strategy", "bfd"))
    order = str(settings.take("train_sampling_strategy", "random"))
    is_grouped = settings.take_flag(_GROUPED)
    named = "train_sampling_strategy" if order == _GROUPED else _GROUPED
    is_grouped = is_grouped or order == _GROUPED
    if order not in ("random", "sequential", _GROUPED):
        settings.leave("train_sampling_strategy", f"{order}: the suite draws rows at random", "training")
    kept = {"shuffle": False} if order == "sequential" and not is_grouped else {}
    if is_packed and _is_carried(strategy, settings):
        if is_grouped:
            settings.leave(
                named, "a suite fills all packed rows up to one length: none to group by", "training"
            )
        return {"packing": True, **kept}
    if is_grouped:
        # the default collator fills rows up to the longest of a micro-batch
        return {"padding": "longest", _GROUPED: True}
    # TRL's collator does so too
    return {**({"padding": "longest"} if is_packed or tokens else {}), **kept}


def _is_carried(strategy: str, settings: Settings) -> bool:
    """True if a suite packs rows as *strategy* does, or nearly; says what it does otherwise."""
    if strategy == "wrapped":
        reason = "wrapped joins all rows and cuts the result, but packing of a suite keeps each row whole"
        settings.leave("packing", f"packing_strategy: {reason}, which is another training", "training")
    elif strategy == "ffd":
        settings.leave("packing_strategy", "ffd (first fit): it becomes best-fit decreasing", "training")
    elif strategy in _CUT_ROWS:
        reason = "best-fit decreasing, but rows that are too long are refused instead of divided"
        settings.leave("packing_strategy", f"{strategy}: it becomes {reason}", "training")
    elif strategy != "bfd":
        reason = f"packing_strategy: {strategy!r} is none of bfd, ffd, {', '.join(_CUT_ROWS)} and wrapped"
        settings.leave("packing", reason, "training")
        return False
    return strategy != "wrapped"

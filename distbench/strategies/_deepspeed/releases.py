"""DeepSpeed releases with a feature removal. Imports no torch."""

FIRST_WITHOUT_ONEBIT = (0, 19, 7)
"""First version without the techniques of ``deepspeed_removed``."""
LAST_WITH_ONEBIT = "0.19.6"
"""Last version with them."""
REMOVAL_ISSUE = "https://github.com/deepspeedai/DeepSpeed/issues/8489"

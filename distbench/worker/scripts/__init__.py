"""Measure a training script from inside its ranks, without a change to it.

``injected/sitecustomize.py`` runs at the start of Python and waits for torch's optimizers (``activation``).
The first update of an optimizer makes a process a rank: launchers, data loader workers and helpers never
update one. A ``ScriptSession`` then divides the steps of the script into the passes of any measured trial.
Nothing is ever communicated between ranks, and an error in here ends the measurement, not the script.
"""

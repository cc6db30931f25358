"""Measurements behind `pbprompt bench`: ours against the plain way, in one run."""

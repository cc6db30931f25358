"""The frozen towers, their weights and tokeniser, and the exact fast text engine."""

from importlib.resources import files

ASSETS = files(__name__) / "assets"

"""The frozen towers, their weights and tokeniser, and the exact fast text engine."""

"""What a checkout measures of itself; run from its root, not part of the installed package."""

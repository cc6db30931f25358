"""One run of the protocol: what it was asked, what it measured, and the store that keeps it."""

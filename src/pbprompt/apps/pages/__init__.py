"""Pages and drawings: the one writer of HTML."""

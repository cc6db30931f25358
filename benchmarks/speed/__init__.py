"""Training, prediction and growth: the library against the plain way, in one run."""

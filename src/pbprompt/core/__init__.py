"""The paper's equations, one concept a file, usable alone."""

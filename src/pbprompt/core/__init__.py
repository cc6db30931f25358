"""The paper's equations, one concept per file, usable alone."""

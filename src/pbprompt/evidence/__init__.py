"""Names as prior, photographs as evidence: the default."""

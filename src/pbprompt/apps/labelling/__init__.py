"""Which images to label next."""

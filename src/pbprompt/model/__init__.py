"""A tuned model: fitted, saved and loaded, asked for predictions, and how far to trust them."""

"""Methods that learn inside the towers, one a file."""

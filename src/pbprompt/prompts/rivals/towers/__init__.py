"""Methods that learn inside the towers, akin ones in one file."""

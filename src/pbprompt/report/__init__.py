"""Records, tables and cards."""

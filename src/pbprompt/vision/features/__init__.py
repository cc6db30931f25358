"""Images -> frozen features: decoded, encoded once, kept in a store."""

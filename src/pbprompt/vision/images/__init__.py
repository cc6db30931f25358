"""What is on disk: items, datasets, draws and transforms."""

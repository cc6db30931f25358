"""What is in a folder of images: counts, duplicates, overlaps, likely label errors, outliers."""

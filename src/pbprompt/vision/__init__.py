"""What an image is to a model: towers, images, and their features."""

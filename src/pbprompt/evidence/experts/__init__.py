"""What scores an image for every class, and each labelled photograph left out; one a file."""

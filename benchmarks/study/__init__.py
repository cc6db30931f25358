"""The study on photographs: its recipes, what its runs found, and the page that says so."""

"""From a table of a paper to our figures: recipes, runs, sweeps, reports."""

"""Attacks on the project, kept as a command: faults at every call of the file layer, and hostile inputs.

`python -m benchmarks.chaos` prints one table: tried, survived, refused in words, lost, hung.
"""

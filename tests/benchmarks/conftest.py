"""The benchmarks belong to a checkout; a copy without them has nothing here to test."""

from pathlib import Path

if not (Path(__file__).parents[2] / "benchmarks").is_dir():
    collect_ignore_glob = ["*"]

"""What the benchmark of drift counts."""

import json
import re
from pathlib import Path

from benchmarks import drift

ROOT = Path(__file__).parents[2]


def test_alarms_are_counted_by_each_test_and_by_all_of_them():
    rows = [{"p": {"unsure": p, "class": 1.0}} for p in (0.02, 0.04, 0.5, 0.9)]
    assert drift.alarms(rows, 0.05) == {"unsure": 50, "class": 0, "all": 25}  # 0.025 is left for each


def test_the_table_has_a_row_for_each_number_of_images():
    rows = [
        {
            "fitted": count,
            "seed": 1,
            "domain": name,
            "asked": asked,
            "p": {"unsure": 0.001 if name == "photo" else 1.0},
        }
        for count in drift.FITTED
        for name in drift.DOMAINS
        for asked in drift.ASKED
    ]
    shown = drift.shown(rows).splitlines()
    assert len(shown) == 2 + len(rows)
    assert shown[2].endswith("112 | photo | 10 | 1 | 100 | 100 | 100 | 100 |")


def test_the_page_says_what_was_measured():
    kept = json.loads((ROOT / "benchmarks" / "results" / "drift.json").read_text(encoding="utf-8"))
    photos = [row for row in kept["rows"] if row["domain"] == "photo"]
    others = [row for row in kept["rows"] if row["domain"] != "photo"]
    page = (ROOT / "docs" / "verbs" / "monitor.md").read_text(encoding="utf-8")
    said = re.search(
        r"photographs in (\S+) % of (\d+) checks .* in (\S+) % at 5 %; .* (\d+) % of (\d+)", page
    )
    found = [drift.alarms(photos, rate)["all"] for rate in drift.RATES]
    assert said.groups() == (
        *(f"{found[0]:.1f}", f"{len(photos)}", f"{found[1]:.1f}"),
        *(f"{drift.alarms(others, 0.01)['all']:.0f}", f"{len(others)}"),
    )

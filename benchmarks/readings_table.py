"""Markdown table of what `readings.py` measured: accuracy / NLL / ECE, mean over seeds, best mean first.

python benchmarks/readings_table.py benchmarks/results/readings-test.jsonl [--std]
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean, pstdev


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", type=Path)
    parser.add_argument("--std", action="store_true", help="also the spread of the accuracy over seeds")
    args = parser.parse_args()
    runs: dict[str, dict[tuple[str, int], list[dict]]] = defaultdict(lambda: defaultdict(list))
    for line in args.records.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        runs[record["name"]][record["dataset"], record["shots"]].append(record)
    columns = sorted({column for cells in runs.values() for column in cells})
    print("| settings |", " | ".join(f"{name}, {shots}" for name, shots in columns), "| mean | changes |")
    print("|---" * (len(columns) + 3) + "|")
    rows = []
    for name, cells in runs.items():
        text = []
        for column in columns:
            if column not in cells:
                text.append("–")
                continue
            accuracies = [100 * record["accuracy"] for record in cells[column]]
            spread = f" ± {pstdev(accuracies):.1f}" if args.std else ""
            nll, ece = (mean(record[key] for record in cells[column]) for key in ("nll", "ece"))
            text.append(f"{mean(accuracies):.1f}{spread} / {nll:.2f} / {100 * ece:.1f}")
        whole = set(columns) <= set(cells)
        figures = {
            key: mean(mean(record[key] for record in cells[column]) for column in cells)
            for key in ("accuracy", "nll")
        }
        total = f"{100 * figures['accuracy']:.2f} / {figures['nll']:.3f}" if whole else "incomplete"
        words = next(iter(cells.values()))[0]["words"]
        rows.append(
            (whole, figures["accuracy"], f"| {name} | {' | '.join(text)} | {total} | `{' '.join(words)}` |")
        )
    for _, _, row in sorted(rows, reverse=True):
        print(row)


if __name__ == "__main__":
    main()

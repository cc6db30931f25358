"""The studies on photographs: what they cost, what they found, and the pages that say so.

    python -m benchmarks.study plan --study evidence --root DATA [--runs RUNS]
    pbprompt research reproduce benchmarks/study/recipes/evidence-few-shot.yaml --root DATA --runs RUNS …
    python -m benchmarks.study summarise --study evidence --runs RUNS --out SUMMARY.json
    python -m benchmarks.study render SUMMARY.json --out docs/study.md [--csv CELLS.csv] [--readme README.md]

`evidence` compares `conjugate` with its rivals, `prompts` PBPrompt with the methods that tune prompts. `plan`
counts runs and training steps; `summarise` needs the store of runs, with its arrays; `maps` (of `prompts`)
tunes some models and keeps their mean transport plans; `render` needs the files of these two and the study's
template, `<study>.md.in`, alone.
"""

import argparse
import json
import sys
from pathlib import Path

from benchmarks.study.maps import measure_maps
from benchmarks.study.page import measured, write_page
from benchmarks.study.parts import STUDIES, load_parts
from benchmarks.study.plan import print_plan
from benchmarks.study.readme import write_readme
from benchmarks.study.summary import cells_as_csv, summarise
from pbprompt.errors import InputError
from pbprompt.files import write_text
from pbprompt.research.runs import RunStore


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    plan = verbs.add_parser("plan", help="runs and training steps of every row")
    plan.add_argument("--root", type=Path, help="where the benchmarks are (or $PBPROMPT_DATA)")
    plan.add_argument("--runs", type=Path, help="a store: also what is left, and how long runs took")
    summary = verbs.add_parser("summarise", help="from the store of runs to one JSON file")
    summary.add_argument("--runs", type=Path, required=True)
    summary.add_argument("--out", type=Path, required=True)
    for verb in (plan, summary):
        verb.add_argument("--study", choices=list(STUDIES), required=True)
        verb.add_argument("--part", nargs="+", default=[], help="only these parts")
    maps = verbs.add_parser("maps", help="where the transport looks: tunes eight models")
    maps.add_argument("--root", type=Path, help="where the benchmarks are (or $PBPROMPT_DATA)")
    render = verbs.add_parser("render", help="from the JSON file to the page and its figures")
    render.add_argument("summary", type=Path)
    render.add_argument("--out", type=Path, required=True, help="the page; figures go to images/ beside it")
    render.add_argument("--csv", type=Path, help="also write every cell, a line each")
    render.add_argument("--readme", type=Path, help="also write the table of this README (of `evidence`)")
    options = parser.parse_args()
    try:
        if options.verb == "plan":
            store = RunStore(options.runs) if options.runs else None
            print_plan(load_parts(options.part, options.study), options.root, store)
        elif options.verb == "summarise":
            parts = load_parts(options.part, options.study)
            study = summarise(RunStore(options.runs), parts, say, study=options.study)
            write_text(options.out, dense(study))
        elif options.verb == "maps":
            measure_maps(options.root, say)
        else:
            found = measured(json.loads(options.summary.read_text(encoding="utf-8")))
            write_page(found, template_of(found["study"]), options.out)
            if options.csv:
                write_text(options.csv, cells_as_csv(found))
            if options.readme:
                write_readme(found, options.readme)
    except InputError as error:
        raise SystemExit(f"error: {error}") from None


def template_of(study: str) -> str:
    return Path(__file__).with_name(f"{study}.md.in").read_text(encoding="utf-8")


def dense(study: object, depth: int = 5) -> str:
    """JSON with a line for each value at that depth: small, and yet to be read and compared."""

    def lines(value: object, level: int) -> str:
        if level < depth and isinstance(value, dict) and value:
            inner = ",\n".join(
                f"{json.dumps(k, ensure_ascii=False)}:{lines(v, level + 1)}" for k, v in value.items()
            )
            return f"{{\n{inner}\n}}"
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    return lines(study, 0) + "\n"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

"""`pbprompt monitor`: whether images in use are still like those that a model was judged by."""

from pathlib import Path

import typer

from pbprompt.apps.cli.output import importing, next_step, print_json, print_table, quote, tell
from pbprompt.errors import InputError

WORDS = {"unfamiliar": "look like none of the classes", "unsure": "unsure"}


def monitor(
    answers: Path = typer.Argument(..., help="What `pbprompt predict` wrote: .csv, .jsonl, .parquet."),
    model: Path = typer.Option(..., help="The folder of the model that answered."),
    error_rate: float = typer.Option(
        0.01, min=0.002, max=0.5, help="How often it may say drift where nothing has changed."
    ),
    show: int = typer.Option(10, min=0, help="How many of the least familiar images to list."),
    html: Path | None = typer.Option(
        None, help="Write one page with pictures of the least familiar images to this file."
    ),
    root: Path | None = typer.Option(
        None, help="With --html: the folder that the images' paths are relative to. [this one]"
    ),
    as_json: bool = typer.Option(False, "--json", help="All figures as one JSON object."),
) -> None:
    """Say whether images in use are still like those that a model was judged by at fit.

    [bold]pbprompt predict today/ --model model/ --out today.csv[/bold]

    [bold]pbprompt monitor today.csv --model model/[/bold]

    What --reject-at, --coverage and --none-at promise is promised of such images alone. Three things are
    compared with the images that were left out at fit: whether images look less like the classes, whether
    answers are less sure, and whether other classes come. `by chance` is how often images that come as they
    did at fit would differ as much. It is drift where one of them is rarer than its part of --error-rate;
    exit code 1, so that a script can act. A few dozen answers show a new camera, a few hundred a little more
    of one class.

    [bold]--html drift.html[/bold] is a page with pictures of the images that look least like the classes.

    Photographs of one series count as many: give one of each. The images that the model was fitted to tell
    nothing: it knows them.
    """
    with importing():
        from pbprompt.apps.batch.formats import read
        from pbprompt.model.calibration import read_calibration
        from pbprompt.model.monitoring import Answered, at_fit, class_shares, compare

    if root is not None and html is None:
        raise InputError("--root: it is for --html: leave it out")
    calibration = read_calibration(model)
    if calibration is None and not model.is_dir():
        raise InputError(f"{model}: no such folder: give one that `fit` wrote")
    if calibration is None:
        raise InputError(
            f"{model}: no calibration.json in it, so that nothing was promised: fit a single-label model, by "
            "`conjugate` or with validation images"
        )
    rows = list(read(answers, ("image", "label", "score", "familiarity")))
    if not {row.label for row in rows} & {*calibration.labels}:
        raise InputError(f"{answers}: no answer of a class of {model} in it: give what this model answered")
    familiar = [row.familiarity for row in rows if row.familiarity is not None]
    familiar = familiar if len(familiar) == len(rows) else []
    now = Answered([row.label for row in rows], [row.score for row in rows], familiar)
    checks = compare(calibration, now)
    drift = [one for one in checks if one.p_value <= error_rate / len(checks)]
    least = sorted(rows, key=lambda row: row.familiarity or 0)[:show] if familiar else []
    strangest = [(row.image, row.label, row.familiarity) for row in least]
    state = "drift" if drift else "no drift"
    verdict = f"{state}: where nothing has changed, at most {error_rate:.1%} of checks say drift"
    on = f"{len(rows):,} answers, beside those at fit on {calibration.rests_on}"
    cells = []
    for one in checks:
        figures = f"{one.at_fit:.1%}", f"{one.now:.1%}", f"{one.p_value:.2g}"
        cells.append((WORDS.get(one.share, one.share), *figures, "drift" * (one in drift)))
    if html is not None:
        from pbprompt.apps.pages.html_page import page
        from pbprompt.files import write_text

        facts = {"Model": str(model), "Answers": f"{answers}: {on}", "Verdict": verdict}
        parts = {"compared": facts, "checks": cells, "strangest": strangest, "root": root or Path()}
        write_text(html, page("monitor.html", title=f"Images in use: {state}", **parts))
        tell(f"wrote {html}")
    if as_json:
        shares = class_shares(at_fit(calibration), now)
        found = {
            "answers": len(rows),
            "at_fit": len(calibration.single),
            "error_rate": error_rate,
            "drift": bool(drift),
            "checks": [{**one._asdict(), "drift": one in drift} for one in checks],
            "classes": {name: {"at_fit": before, "now": after} for name, (before, after) in shares.items()},
            "least_familiar": [
                {"image": image, "label": label, "familiarity": share} for image, label, share in strangest
            ],
        }
        print_json(found, indent=1)
    else:
        columns = ("share of answers", "at fit", "now", "by chance", "")
        print_table(columns, cells, right=columns[1:4])
        print(verdict)
        if strangest:
            shown = [(image, f"{share:.3f}", label) for image, label, share in strangest]
            heads = ("least familiar", "familiarity", "answer")
            print_table(heads, shown, right=heads[1:2], paths=heads[:1])
        tell(on)
        if len(checks) < 3:
            tell("not all was compared: the method has no familiarity, or the model is of an earlier version")
    if drift:
        next_step(f"pbprompt next UNLABELLED/ --model {quote(model)}", "which of the new images to label")
        raise typer.Exit(1)

"""The default model beside what scikit-learn's users would take, on narrow and on broad classes.

    python -m benchmarks.broad_classes --root DATA --part test --out benchmarks/results/broad-classes.json
    python -m benchmarks.broad_classes --show benchmarks/results/broad-classes.json

k nearest neighbours, a support vector machine (rbf) and logistic regression, each with its settings by
five-fold cross-validation on the same features of `lite`; accuracy / NLL / ECE. Then what foreign names take:
the largest share of images that one of 200 unrelated nouns takes, the mean, and the points of accuracy that
twenty of them cost; and photographs of the other datasets as none of these (AUROC by dataset; the share of
known images that `--none-at 0.05` marks). `--show` prints the means of a file as tables.
"""

import argparse
import json
import random
import warnings
from multiprocessing import Pool
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from benchmarks.problems import BROAD, NARROW, Labelled, Problem, answers, figures, fitted, problem, split
from pbprompt import markdown
from pbprompt.evidence.answers import NewNames
from pbprompt.evidence.conjugate import Conjugate
from pbprompt.evidence.expert import Seen
from pbprompt.files import write_text
from pbprompt.model.metrics.selective import auroc
from pbprompt.research.provenance import commit
from pbprompt.vision.similarity import unit

SHOTS: tuple[int | None, ...] = (1, 2, 4, 16, 100, None)
PROBLEMS = (
    *((name, "narrow") for name in NARROW),
    ("pacs", "narrow"),
    ("oxford_pets", "cats-dogs"),
    *((name, str(groups)) for name, groups in BROAD),
)
OTHERS = ("caltech101", "oxford_pets", "flowers102", "grocery:photo", "pacs")
UNRELATED = """\
red panda, stapler, volcano, submarine, violin, pyramid, tractor, igloo, chainsaw, parachute, bulldozer,
harp, trombone, cathedral, glacier, waterfall, skyscraper, locomotive, hammock, anvil, abacus, compass,
telescope, thermometer, wheelbarrow, gondola, kayak, snowmobile, hovercraft, trampoline, carousel, cannon,
sword, tent, bonfire, fireworks, rainbow, tornado, asteroid, galaxy, robot, spaceship, printer, modem,
router, screwdriver, pliers, drill, ladder, bathtub, toilet, shower, oven, toaster, blender, kettle, pillow,
blanket, curtain, carpet, sofa, bookcase, wardrobe, mailbox, billboard, traffic light, parking meter, fire
hydrant, tuxedo, kimono, scarf, mitten, sandal, necklace, bracelet, perfume, lipstick, toothbrush, razor,
syringe, stethoscope, crutch, bandage, escalator, elevator, runway, harbor, dam, tunnel, canal, vineyard,
orchard, desert, canyon, geyser, iceberg, lagoon, quarry, mine, refinery, foundry, sawmill, brewery, bakery,
library, museum, stadium, theatre, prison, hospital, courtroom, classroom, laboratory, observatory,
planetarium, aquarium, greenhouse, barn, silo, stable, kennel, fence, hedge, fountain, statue, obelisk,
mosaic, tapestry, engraving, manuscript, dictionary, calendar, envelope, postage stamp, banknote, coin,
passport, diploma, trophy, medal, crown, throne, sceptre, shield, spear, catapult, trebuchet, musket,
grenade, torpedo, periscope, anchor, rudder, propeller, piston, carburetor, gearbox, radiator, alternator,
transistor, capacitor, oscilloscope, voltmeter, soldering iron, lathe, welding torch, jackhammer, excavator,
forklift, crane, scaffold, girder, brick, cement mixer, plumbing, faucet, valve, hose, sprinkler, lawn
mower, rake, shovel, hoe, scythe, plough, combine harvester, hay bale, beehive, birdhouse, trellis, sundial,
weather vane, barometer, hourglass, metronome"""
NOUNS = tuple(UNRELATED.replace("\n", " ").split(", "))


def rivals(train: Labelled, held_out: Labelled) -> dict[str, list[float]]:
    """By the settings that cross-validation likes best; of an SVM, the accuracy alone."""
    x, new = (unit(each.images).double().numpy() for each in (train, held_out))
    y = train.labels.numpy()
    folds = min(5, int(np.bincount(y)[np.bincount(y) > 0].min()))
    if folds < 2:
        return {}
    most = len(y) - -(-len(y) // folds)
    neighbours = [k for k in (1, 3, 5, 10, 20) if k <= most]
    kinds = {
        "k nearest neighbours": (KNeighborsClassifier(weights="distance"), {"n_neighbors": neighbours}),
        "SVM": (SVC(), {"C": [1, 10, 100], "gamma": [1, 3]}),
        "logistic regression": (LogisticRegression(max_iter=200), {"C": [1, 10, 100, 1000, 10_000]}),
    }
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for title, (kind, grid) in kinds.items():
            best = GridSearchCV(kind, grid, cv=folds).fit(x, y)
            if title == "SVM":
                found[title] = [100 * best.score(new, held_out.labels.numpy())]
            else:
                found[title] = figures(torch.tensor(best.predict_proba(new)), held_out.labels)
    return found


def foreign(method: Conjugate, given: Problem) -> dict[str, float]:
    """What names of other things take of the known classes' images, in %, by the best weights."""
    posterior, scale = method.fitted.posterior, float(method.backbone.logit_scale)
    x = unit(given.held_out.images)
    experts = posterior.scores(Seen(x))
    known, looks = torch.tensordot(posterior.weights.best, experts, dims=1), posterior.strangeness(experts)
    texts, level, by_name = method.sight.read(NOUNS), known.logsumexp(1), posterior.by_name(experts)
    right = known.argmax(1) == given.held_out.labels

    def taken(places: list[int]) -> torch.Tensor:
        odds = NewNames(posterior, [texts[places]], [scale]).log_odds([Seen(x)], looks, by_name)
        return level + odds.amax(1) > known.amax(1)

    shares = [100 * float(taken([place]).double().mean()) for place in range(len(NOUNS))]
    chance, lost = random.Random(0), []
    for _ in range(10):
        gone = taken(chance.sample(range(len(NOUNS)), 20))
        lost.append(100 * float((right & gone).double().mean()))
    return {"one, most": max(shares), "one, mean": fmean(shares), "twenty": fmean(lost)}


def none_of_these(method: Conjugate, given: Problem, name: str, root: Path, part: str) -> dict[str, Any]:
    familiar = method.fitted.familiarity(given.held_out.encoded)
    if familiar is None:
        return {}
    found: dict[str, Any] = {"marked": 100 * float((familiar <= 0.05).double().mean())}
    for other in OTHERS:
        if other != name:
            theirs = method.fitted.familiarity(split(other, root, part).encoded)
            assert theirs is not None
            both = torch.cat([familiar, theirs])
            found[other] = 100 * auroc(-both.numpy(), (torch.arange(len(both)) >= len(familiar)).numpy())
    return found


def measured(asked: tuple[str, str, int | None, int, Path, str]) -> dict[str, Any]:
    """One problem and draw, in a process of its own."""
    name, kind, shots, seed, root, part = asked
    torch.set_num_threads(1)
    one = problem(name, kind, root, part, seed)
    photographs = one.draw(shots, seed)
    method = fitted(one.classes, one.template, photographs)
    row: dict[str, Any] = {"data": name, "kind": kind, "shots": shots, "seed": seed}
    row["conjugate"] = figures(answers(method, one.held_out), one.held_out.labels)
    row |= rivals(photographs, one.held_out)
    if seed == 1:
        row["foreign"] = foreign(method, one)
        row["none of these"] = none_of_these(method, one, name, root, part)
    return row


def shown(rows: list[dict[str, Any]]) -> str:
    """Two tables: the classifiers beside each other, then foreign names and none of these."""
    parts = []
    groups = {
        "narrow": [row for row in rows if row["kind"] == "narrow"],
        "broad": [row for row in rows if row["kind"].isdigit()],
    }
    names = ("conjugate", "k nearest neighbours", "SVM", "logistic regression")
    for group, own in groups.items():
        sizes = [shots for shots in SHOTS if any(row["shots"] == shots for row in own)]
        table = []
        for name in names:
            cells = []
            for shots in sizes:
                found = [row[name] for row in own if row["shots"] == shots and name in row]
                means = [fmean(column) for column in zip(*found, strict=True)]
                forms = ("{:.1f}", "{:.3f}", "{:.1f}")
                cells.append(
                    " / ".join(form.format(value) for form, value in zip(forms, means, strict=False))
                )
            table.append([name, *(cell or "–" for cell in cells)])
        heads = [f"{group} classes", *("all" if shots is None else f"{shots}" for shots in sizes)]
        parts.append(markdown.table(heads, table))
    table = []
    for group, own in groups.items():
        for shots in SHOTS:
            some = [row for row in own if row["shots"] == shots and "foreign" in row]
            told = [row["none of these"] for row in some if row["none of these"]]
            if some:
                far = [value for row in told for key, value in row.items() if key != "marked"]
                table.append(
                    [
                        f"{group}, {'all' if shots is None else shots}",
                        *(f"{fmean(row['foreign'][key] for row in some):.2f}" for key in some[0]["foreign"]),
                        f"{fmean(far):.1f} ({min(far):.1f})" if far else "–",
                        f"{fmean(row['marked'] for row in told):.1f}" if told else "–",
                    ]
                )
    heads = [
        "photographs per class",
        "one name, most",
        "one name, mean",
        "twenty names",
        "AUROC (worst)",
        "marked",
    ]
    return "\n\n".join([*parts, markdown.table(heads, table)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path)
    parser.add_argument("--part", default="val", choices=("val", "test"))
    parser.add_argument("--seeds", type=int, default=3, help="draws, and merges, of each")
    parser.add_argument("--jobs", type=int, default=1, help="problems that are measured at a time")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, help="print a file's means, and measure nothing")
    given = parser.parse_args()
    if given.show:
        print(shown(json.loads(given.show.read_text(encoding="utf-8"))["rows"]))
        return
    if not (given.root and given.out):
        parser.error("give --root and --out, or --show")
    asked = [
        (name, kind, shots, seed, given.root, given.part)
        for name, kind in PROBLEMS
        for shots in SHOTS
        for seed in range(1, given.seeds + 1)
        if not (shots == 100 and kind == "narrow") and (shots or seed == 1)
    ]
    rows, at = [], commit()
    with Pool(given.jobs) as pool:
        for row in pool.imap(measured, asked):
            rows.append(row)
            print(json.dumps(row), flush=True)
    write_text(given.out, json.dumps({"commit": at, "part": given.part, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

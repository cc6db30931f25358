"""The default on features of real CLIP models, beside names alone and the methods it is compared with.

    python -m benchmarks.on_clip --features FOLDER --out benchmarks/results/on-clip.json
    python -m benchmarks.on_clip --page docs/on-clip.md

FOLDER holds `caltech101.npz`, `stanford_cars.npz` and `fgvc_aircraft.npz`: image features of OpenAI's
ViT-B/32 and ViT-B/16, of length 1 (`vitb32_val`, `val_y`, …), and text of the names (`vitb32_text`;
`vitb32_named`: the classes that have one); `names.npz` the text of other names. On Caltech101 and
FGVCAircraft photographs are drawn from the validation split and the test split judges. Cars have no test
rows: up to four are drawn from the validation split and judged by the rest of it; eight and sixteen from
`views`, each the mean of augmented views of a training image, and judged by the whole validation split. A
class with fewer gives all it has.

Names alone have the temperature that suits the judging images best, and so has the mix of names and GDA its
two weights: bounds that no one can know. Rivals are those of the library: with the published constants and as
they are, and with their constants searched, and their temperature fitted, by images left out (`benchmarks/
study`: the same). With one photograph per class nothing can be left out, and they are as they are.

Intervals are of the difference to the default, judging images and draws resampled together. Rivals take most
of the time; `--without-rivals` leaves them out, and the same command without it adds them, source by source.

Then what is known by name alone: half of the classes have photographs and the others a name; of each of the
1,000 names in `names.npz` how many images of a model that knows all classes it takes; and how well
familiarity tells the other sets' images. And what images without labels add to names, and to one photograph
per class.
"""

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.problems import figures
from pbprompt import EvidenceClassifier, markdown
from pbprompt.evidence.answers import NewNames
from pbprompt.evidence.evidence import Evidence
from pbprompt.evidence.expert import Photographs, Seen
from pbprompt.evidence.novelty import HUGE, reluctance
from pbprompt.evidence.posterior import fit_posterior
from pbprompt.evidence.rivals.linear import gaussian_discriminant
from pbprompt.evidence.rivals.proker import ProKeR, best_settings
from pbprompt.evidence.rivals.tip_adapter import TipAdapter
from pbprompt.evidence.series import held_out
from pbprompt.evidence.temperature import fit_temperature
from pbprompt.evidence.weights import combined, fit_weights
from pbprompt.files import write_text
from pbprompt.learners.memory import Asked, Memory
from pbprompt.learners.method import Method, make_config
from pbprompt.model.metrics.resampling import image_counts, interval, seed_shares
from pbprompt.model.metrics.selective import auroc
from pbprompt.model.predictor import predictive
from pbprompt.registry import find_method
from pbprompt.research.provenance import commit
from pbprompt.vision.towers.backbone import Backbone, Encoded

SCALE = 100.0
SEEDS = (1, 2, 3)
SHOTS = (1, 2, 4, 8, 16)
RESAMPLES = 1000
FEW = (1, 2, 4)  # of the cars' validation split, where a class has five or more: one at least judges
FILES = ("caltech101", "stanford_cars", "fgvc_aircraft", "names")
RESULTS = Path(__file__).parent / "results"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
DEFAULT, BY_NAME, MIX = "default", "names alone, best temperature", "names and GDA, best mix"
ALONE = "default, no names"
Rows = tuple[NDArray[np.float32], NDArray[np.int64]]


class Rival(NamedTuple):
    """A method of the library, with settings, and its temperature by images left out or 1."""

    method: str
    settings: tuple[str, ...] = ()
    tempered: bool = False
    reads_text: bool = True


RIVALS: Mapping[str, Rival] = {
    "names and GDA, as published": Rival("gda"),
    "names and GDA, searched": Rival("gda", ("alpha=0",), tempered=True),
    "Tip-Adapter, as published": Rival("tip-adapter"),
    "Tip-Adapter, searched": Rival(
        "tip-adapter", ("search_alpha=50", "search_beta=50", "search_on=left-out"), tempered=True
    ),
    "ProKeR, as published": Rival("proker"),
    "ProKeR, searched": Rival("proker", ("search=true",), tempered=True),
    "LP++": Rival("lp++"),
    "GDA, no names": Rival("gda", tempered=True, reads_text=False),
    "logistic regression": Rival("linear-probe", reads_text=False),
}


class Source(NamedTuple):
    """Images to draw from, and to judge by; the judging ones are what is left where they are the same."""

    title: str
    train: Rows
    held_out: Rows | None
    texts: NDArray[np.float32] | None
    shots: Sequence[int] = SHOTS

    @property
    def classes(self) -> int:
        return int(self.train[1].max()) + 1

    def drawn(self, shots: int, seed: int) -> NDArray[np.int64]:
        """Rows of so many photographs of each class, or all it has."""
        chance, labels = np.random.default_rng(seed), self.train[1]
        own = (np.flatnonzero(labels == c) for c in range(self.classes))
        return np.concatenate([chance.permutation(each)[:shots] for each in own])

    def judging(self, rows: NDArray[np.int64]) -> tuple[Rows, NDArray[np.bool_]]:
        """All images that may judge, and which of them do."""
        if self.held_out is not None:
            return self.held_out, np.ones(len(self.held_out[1]), dtype=bool)
        return self.train, ~np.isin(np.arange(len(self.train[1])), rows)


def sources(folder: Path) -> list[Source]:
    found = list[Source]()
    caltech, cars, aircraft, _ = (np.load(folder / f"{name}.npz") for name in FILES)
    for net, title in (("vitb32", "ViT-B/32"), ("vitb16", "ViT-B/16")):
        named = np.sort(caltech[f"{net}_named"])
        train, judging = (
            some(caltech[f"{net}_{part}"], caltech[f"{part}_y"], named) for part in ("val", "test")
        )
        found.append(Source(f"Caltech101, {title}", train, judging, _wide(caltech[f"{net}_text"][named])))
    every = np.arange(len(cars["classnames"]))
    val, views = (some(cars[f"vitb32_{part}"], cars[f"{part}_y"], every) for part in ("val", "views"))
    texts = _wide(cars["vitb32_text"])
    found[1:1] = [
        Source("StanfordCars, ViT-B/32", val, None, texts, FEW),
        Source("StanfordCars, ViT-B/32, from views", views, val, texts, SHOTS[len(FEW) :]),
    ]
    train, judging = ((_wide(aircraft[f"vitb32_{part}"]), aircraft[f"{part}_y"]) for part in ("val", "test"))
    return [*found, Source("FGVCAircraft, ViT-B/32", train, judging, None)]


def _wide(x: NDArray[Any]) -> NDArray[np.float32]:
    return x.astype(np.float32)


def some(x: NDArray[Any], y: NDArray[Any], classes: NDArray[Any]) -> Rows:
    rows = np.isin(y, classes)
    return _wide(x[rows]), np.searchsorted(classes, y[rows])


def best(tables: list[Tensor], labels: Tensor) -> Tensor:
    """Probabilities by the weights that suit the judging images best."""
    scores = torch.stack([table.double() for table in tables])
    usual = torch.tensor([1 / float(table.var(1).mean().sqrt()) for table in scores]).double()
    weights = fit_weights(scores, labels, usual).best
    return torch.einsum("e,enk->nk", weights, scores).softmax(1)


def names_alone(z: NDArray[np.float32], texts: NDArray[np.float32], labels: Tensor) -> Tensor:
    return best([torch.from_numpy(z @ (texts - texts.mean(0)).T) * SCALE], labels)


def rival(
    given: Rival,
    texts: Float[Tensor, "k d"],
    images: Float[Tensor, "n d"],
    labels: Int[Tensor, " n"],
    asked: Float[Tensor, "b d"],
) -> Float[Tensor, "b k"]:
    """Probabilities, by a tower of which there are only features."""
    text = texts if given.reads_text else torch.zeros_like(texts)
    method = fitted(given.method, given.settings, text, images, labels)
    folds = held_out(labels) if given.tempered else []
    if not folds:
        return logs(method, asked).exp()
    fixed = given.settings  # what was searched stays as it was found
    if isinstance(method, TipAdapter) and method.config.searches:
        fixed = tuple(
            f"{name}={float(value)}"
            for name, value in zip(("alpha", "beta"), method.fitted.found, strict=True)
        )
    if isinstance(method, ProKeR) and method.config.search:
        several = labels.bincount()[labels] > 1
        found = best_settings(images.double(), (images @ text.T).double(), labels, several)
        fixed = tuple(f"{name}={value}" for name, value in zip(("ridge", "beta"), found, strict=True))
    said = [logs(fitted(given.method, fixed, text, images[~out], labels[~out]), images[out]) for out in folds]
    known = torch.cat([labels[out] for out in folds])
    return (logs(method, asked) / fit_temperature(torch.cat(said), known)).softmax(1)


def fitted(name: str, settings: tuple[str, ...], text: Tensor, images: Tensor, labels: Tensor) -> Memory:
    """The text in place of what a tower would have made of names."""
    kind = find_method(name)
    tower = SimpleNamespace(embed_dim=text.shape[1], logit_scale=SCALE, reads_text=True, device=text.device)
    tower.towers = (tower,)

    class Given(kind):  # type: ignore[misc]
        @property
        def asked(self) -> Asked:
            asked: Asked = super().asked
            return replace(asked, read=lambda names: text)

    method = cast(Memory, Given(make_config(kind, overrides=settings), cast(Backbone, tower)))
    method.prepare([f"class {at}" for at in range(len(text))], "{}")
    method.begin(_encoded(images), labels)
    return method


def logs(method: Method, images: Tensor) -> Float[Tensor, "b k"]:
    """Log probabilities."""
    return predictive(method)(_encoded(images)).probabilities.double().clamp_min(1e-38).log()


def _encoded(images: Tensor) -> Encoded:
    return Encoded(images, images.new_zeros(len(images), 0, images.shape[1]))


def answers(
    source: Source,
    rows: NDArray[np.int64],
    z: NDArray[np.float32],
    truth: Tensor,
    rivals: Mapping[str, Rival],
) -> dict[str, Any]:
    """Probabilities by everything that is compared."""
    x, y = (part[rows] for part in source.train)
    said: dict[str, Any] = {}
    if source.texts is not None:
        fitted = gaussian_discriminant(torch.from_numpy(x).double(), torch.from_numpy(y))
        by_name = torch.from_numpy(z @ (source.texts - source.texts.mean(0)).T) * SCALE
        said[DEFAULT] = EvidenceClassifier(source.texts, SCALE).fit(x, y).predict_proba(z)
        said[BY_NAME] = names_alone(z, source.texts, truth)
        said[MIX] = best([by_name, fitted.logits(torch.from_numpy(z).double())], truth)
    said[ALONE] = EvidenceClassifier().fit(x, y).predict_proba(z)
    texts = (
        torch.zeros(source.classes, x.shape[1]) if source.texts is None else torch.from_numpy(source.texts)
    )
    for name, given in rivals.items():
        if source.texts is not None or not given.reads_text:
            said[name] = rival(given, texts, *map(torch.from_numpy, (x, y, z)))
    return said


def measured(source: Source, shots: int, rivals: Mapping[str, Rival] = RIVALS) -> dict[str, Any]:
    """Of every row its figures in each draw, and its intervals beside the default's."""
    figured: dict[str, list[list[float]]] = {}
    right: dict[str, list[NDArray[np.float64]]] = {}
    digest = hashlib.sha256()
    every_draw = {tuple(sorted(rows := source.drawn(shots, seed))): rows for seed in SEEDS}
    for rows in every_draw.values():  # one, where it is all there is
        digest.update(rows.astype(np.int64).tobytes())
        (every, every_label), judging = source.judging(rows)
        truth = torch.from_numpy(every_label[judging])
        for name, said in answers(source, rows, every[judging], truth, rivals).items():
            table = torch.as_tensor(said).double()
            figured.setdefault(name, []).append(figures(table, truth))
            likely = table.gather(1, truth.unsqueeze(1)).squeeze(1).clamp_min(1e-38).log()
            each = np.full((2, len(judging)), np.nan)
            each[:, judging] = torch.stack([100.0 * (table.argmax(1) == truth), -likely]).numpy()
            right.setdefault(name, []).append(each)
    first = DEFAULT if source.texts is not None else ALONE
    return {
        "draws": digest.hexdigest()[:16],
        "judging": int(judging.sum()),
        "rows": {
            name: {"figures": rows, "default ahead": ahead(np.stack(right[first]), np.stack(right[name]))}
            for name, rows in figured.items()
        },
    }


def ahead(
    mine: Float[np.ndarray, "s 2 n"], theirs: Float[np.ndarray, "s 2 n"]
) -> dict[str, tuple[float, float]]:
    """95 % intervals of the difference in accuracy and NLL; NaN where an image does not judge."""
    gap = mine - theirs
    counts, shares = image_counts(gap.shape[2], RESAMPLES), seed_shares(len(gap), RESAMPLES, seed=1)
    judges = counts @ (~np.isnan(gap[:, 0])).T.astype(np.float32)
    found = {}
    for place, metric in enumerate(("accuracy", "NLL")):
        means = counts @ np.nan_to_num(gap[:, place]).T / judges
        found[metric] = interval((shares * means).sum(1))
    return found


def half_by_name(source: Source, shots: int, seed: int) -> list[float | None]:
    """Half of the classes with photographs, all asked for: accuracy, of those that are known by name, of the
    others, and the same of zero-shot, in %; then the AUROC of familiarity for those without photographs."""
    assert source.texts is not None
    rows = source.drawn(shots, seed)
    (every, labels), judging = source.judging(rows)
    z, y, known = every[judging], labels[judging], (source.classes + 1) // 2
    rows = rows[source.train[1][rows] < known]
    model = EvidenceClassifier(dict(enumerate(source.texts)), SCALE)
    model.partial_fit(source.train[0][rows], source.train[1][rows], classes=np.arange(source.classes))
    found = list[float | None]()
    for said in (model.predict(z), (z @ source.texts.T).argmax(1)):
        found += [100 * float((said == y)[which].mean()) for which in (y >= 0, y >= known, y < known)]
    familiar = model.familiarity(z)
    return [*found, None if familiar is None else 100 * auroc(-familiar, y >= known)]


def of_all_classes(every: Sequence[Source], source: Source, shots: int, names: Rows) -> dict[str, Any]:
    """Of the judging images, in %, what each foreign name takes from a model of all classes: the mean, how
    many names take more than 1 %, and the five that take most; and the AUROC of familiarity for the images of
    other sets by the same tower, where there are any."""
    assert source.texts is not None
    rows = source.drawn(shots, SEEDS[0])
    (images, _), judging = source.judging(rows)
    x, y = (torch.from_numpy(part[rows]) for part in source.train)
    evidence, texts = Evidence.of(x, y, source.classes), torch.from_numpy(source.texts)
    shown = Photographs.by_each(evidence, torch.arange(source.classes), [x.shape[1]], texts, [SCALE])
    posterior, _ = fit_posterior(*shown)
    mine = Seen(torch.from_numpy(images[judging]).double())
    scores = posterior.scores(mine)
    known = combined(scores, posterior.weights.draws(1))[0]
    looks, room = (
        posterior.strangeness(scores),
        known.logsumexp(1, keepdim=True) - known.amax(1, keepdim=True),
    )
    others = NewNames(posterior, [torch.from_numpy(names[0])], [SCALE])
    told = posterior.open > -HUGE
    drawn = Seen(posterior.views[0].photographs[told])
    fits = others.fit([drawn], posterior.names_alone(drawn)).split(1, dim=1)  # each as if it came alone
    others.reluctance = torch.cat([reluctance(posterior.novelty, posterior.open[told], fit) for fit in fits])
    takes = room + others.log_odds([mine], looks, posterior.by_name(scores)) > 0
    shares = 100 * takes.double().mean(0).numpy()
    found = {"mean": shares.mean(), "above 1 %": int((shares > 1).sum())}
    found["most"] = {str(names[1][place]): shares[place] for place in shares.argsort()[::-1][:5]}
    own, tower = source.title.split(", ")[:2]
    away = [e for e in every if e.title.endswith(tower) and not e.title.startswith(own)]
    if away and posterior.novelty.familiarity(looks) is not None:
        strange = np.concatenate([(each.held_out or each.train)[0] for each in away])
        theirs = posterior.strangeness(posterior.scores(Seen(torch.from_numpy(strange).double())))
        found["other sets"] = 100 * auroc(
            -torch.cat([looks, theirs]).numpy(), np.arange(len(looks) + len(theirs)) >= len(looks)
        )
    return found


def by_name(every: Sequence[Source], source: Source, names: Rows) -> dict[str, Any]:
    """Of some numbers of photographs what is told by names alone, and of what is none of the classes."""
    return {
        str(shots): {
            "half by name": [half_by_name(source, shots, seed) for seed in SEEDS],
            "all": of_all_classes(every, source, shots, names),
        }
        for shots in source.shots[::2]
    }


def with_a_folder(source: Source) -> dict[str, list[list[float]]]:
    """Figures of names, and of one photograph per class, without and with images without labels: four per
    class, where the draw and these can be kept from judging, else all that there are to draw from."""
    assert source.texts is not None
    texts, found = dict(enumerate(source.texts)), dict[str, list[list[float]]]()
    for seed in SEEDS:
        few = 4 in source.shots
        one, pool = source.drawn(1, seed), source.drawn(4 if few else len(source.train[1]), seed + len(SEEDS))
        pool = np.setdiff1d(pool, one)
        (every, labels), judging = source.judging(np.concatenate([one, pool]))
        z, truth, (x, y) = every[judging], torch.from_numpy(labels[judging]), source.train
        both, told = np.concatenate([one, pool]), np.concatenate([y[one], np.full(len(pool), -1)])
        said = {
            BY_NAME: names_alone(z, source.texts, truth),
            "names and images without labels": EvidenceClassifier(texts, SCALE).fit(x[pool]).predict_proba(z),
            "one photograph": EvidenceClassifier(source.texts, SCALE).fit(x[one], y[one]).predict_proba(z),
            "one photograph and images without labels": EvidenceClassifier(source.texts, SCALE)
            .fit(x[both], told)
            .predict_proba(z),
        }
        for name, table in said.items():
            found.setdefault(name, []).append(figures(torch.as_tensor(table).double(), truth))
    return found


def told_by_name(record: Mapping[str, Any]) -> str:
    """The tables of `by_name` and `with_a_folder`."""
    rows = []
    for title, by_shots in record["by name"].items():
        for shots, found in by_shots.items():
            each = np.array(found["half by name"], dtype=float)  # of None: not a number
            joint, new, old, joint_0, new_0, old_0, half = each.mean(0)
            foreign = found["all"]
            rows.append(
                [title, shots, f"{joint:.1f} ({joint_0:.1f})", f"{new:.1f} ({new_0:.1f})"]
                + [f"{old:.1f} ({old_0:.1f})", f"{foreign['mean']:.2f}", str(foreign["above 1 %"])]
                + ["{} {:.1f}".format(*next(iter(foreign["most"].items())))]
                + [
                    f"{value:.1f}" if np.isfinite(value) else "–"
                    for value in (half, foreign.get("other sets", np.nan))
                ]
            )
    heads = ["", "photographs", "all classes", "those by name", "those with photographs"]
    heads += ["a foreign name takes", "names above 1 %", "most", "AUROC: other half", "AUROC: other sets"]
    folder = [[title, *(cell_of(found[name]) for name in found)] for title, found in record["folder"].items()]
    first = next(iter(record["folder"].values()))
    return markdown.table(heads, rows) + "\n\n" + markdown.table(["", *first], folder)


def cell_of(draws: Sequence[Sequence[float]]) -> str:
    accuracy, nll, ece = (fmean(column) for column in zip(*draws, strict=True))
    return f"{accuracy:.1f} / {nll:.3f} / {ece:.1f}"


def tables(record: Mapping[str, Any]) -> str:
    """Every source's, as the page has them."""
    parts = []
    for title, by_shots in record["figures"].items():
        names = list(dict.fromkeys(name for found in by_shots.values() for name in found["rows"]))
        rows = [[name, *(cell(found["rows"][name]) for found in by_shots.values())] for name in names]
        parts.append(f"**{title}**\n\n" + markdown.table(["", *by_shots], rows))
    return "\n\n".join(parts)


def cell(row: Mapping[str, Any]) -> str:
    """Means over the draws; marked where the default is ahead or behind for sure."""
    low, high = row["default ahead"]["accuracy"]
    mark = " ▽" if low > 0 else " ▲" if high < 0 else ""
    return cell_of(row["figures"]).replace(" /", f"{mark} /", 1)


def goals(record: Mapping[str, Any]) -> str:
    """How far the default is from names alone and from the best mix, at worst of the draws' means."""
    lines = []
    for title, by_shots in record["figures"].items():
        for shots, found in by_shots.items():
            if DEFAULT not in found["rows"]:
                continue
            mine, names, mix = (
                [fmean(column) for column in zip(*found["rows"][name]["figures"], strict=True)]
                for name in (DEFAULT, BY_NAME, MIX)
            )
            lines.append(
                [title, shots]
                + [f"{mine[0] - other[0]:+.1f} / {mine[1] - other[1]:+.3f}" for other in (names, mix)]
                + [f"{mine[2]:.1f}"]
            )
    return markdown.table(["", "shots", "to names alone", "to the best mix", "ECE"], lines)


def with_figures(page: str, record: Mapping[str, Any]) -> str:
    """The page with the tables of this record between its two comments."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{shown(record)}\n{END}{rest.split(END)[1]}"


def shown(record: Mapping[str, Any]) -> str:
    """All tables."""
    return "\n\n".join([tables(record), goals(record), told_by_name(record)])


def file_hashes(folder: Path, names: Sequence[str]) -> dict[str, str]:
    return {name: hashlib.sha256((folder / f"{name}.npz").read_bytes()).hexdigest()[:16] for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--features", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS / "on-clip.json")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--without-rivals", action="store_true", help="the default and its bounds alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.features:
        record: dict[str, Any] = {
            "commit": commit(),
            "seeds": SEEDS,
            "figures": {},
            "by name": {},
            "folder": {},
        }
        record["files"] = file_hashes(given.features, FILES)
        if given.out.is_file():  # of sources that have every row already nothing is measured again
            record = json.loads(given.out.read_text(encoding="utf-8"))
        every, other = sources(given.features), np.load(given.features / "names.npz")
        names, rivals = (_wide(other["vitb32_text"]), other["names"]), {} if given.without_rivals else RIVALS
        for source in every:
            found = record["figures"].get(source.title)
            asked = {name for name, one in rivals.items() if source.texts is not None or not one.reads_text}
            if found and all(asked <= set(each["rows"]) for each in found.values()):
                continue
            print(source.title, flush=True)
            if found:
                record.setdefault("measured again", {})[source.title] = commit()
            record["figures"][source.title] = {str(n): measured(source, n, rivals) for n in source.shots}
            if source.texts is not None:
                record["folder"][source.title] = with_a_folder(source)
                if "B/32" in source.title:  # of whose text the other names are
                    record["by name"][source.title] = by_name(every, source, names)
            write_text(given.out, json.dumps(record, indent=1) + "\n")
    record = json.loads(given.out.read_text(encoding="utf-8"))
    print(shown(record))
    if given.page:
        write_text(given.page, with_figures(given.page.read_text(encoding="utf-8"), record))


if __name__ == "__main__":
    main()

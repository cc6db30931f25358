"""The study's machinery on made-up runs whose order is known."""

import json
import re
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from benchmarks.study import __main__ as command
from benchmarks.study import claims as judging
from benchmarks.study import maps as looking
from benchmarks.study import page
from benchmarks.study.parts import STUDIES, load_parts, shots_in_words, study_recipe
from benchmarks.study.summary import summarise
from pbprompt.errors import InputError
from pbprompt.learners.method import build_method, make_config
from pbprompt.model.metrics.evaluation import harmonic_mean
from pbprompt.model.predictor import predictive
from pbprompt.registry import find_method
from pbprompt.research.costs import DryRun
from pbprompt.research.recipes import load_recipe
from pbprompt.research.runs import BackboneFacts, DataFacts, RunRecord, RunStore
from pbprompt.vision.features.cache import Features
from pbprompt.vision.images.sources import open_dataset

IMAGES = 120
# What is taken from PBPrompt's accuracy; rows that are not here are not run.
WORSE = {
    "B-Prompt": 0.08,
    "P-Prompt": 0.15,
    "PBPrompt, w/o-S": 0.1,
    "PBPrompt, OT": 0.0,
    "CoOp": 0.2,
    "CoCoOp": 0.2,
    "ProDA": 0.2,
    "VPT": 0.2,
    "SHIP": 0.2,
    "zero-shot": 0.3,
    "η = 0": 0.08,
    "η = 0.01": 0.0,
    "η = 0.1": 0.0,
    "η = 10": 0.2,
    "λ = 0": 0.1,
    "λ = 0.25": 0.0,
    "λ = 0.75": 0.0,
    "λ = 1": 0.1,
}
COSINES = {"PBPrompt": 0.8, "B-Prompt": 0.9}
NAMES = ["few-shot", "base-to-new", "eta", "lambda"]


def quiet(line):
    pass


class Store(RunStore):
    """A store in memory, of the runs that `wanted` lets through."""

    def __init__(self, worse=WORSE, cosines=COSINES, wanted=lambda label, config: True, names=NAMES):
        super().__init__("made-up")
        self._records, self._said = {}, {}
        for part in load_parts(names):
            for config, label in part.expand().items():
                lost = 0.0 if label == part.rows[0].label else worse.get(label)
                if config not in self._records and lost is not None and wanted(label, config):
                    self.make(label, config, lost, cosines)

    def make(self, label, config, lost, cosines):
        identity = f"{len(self._records):08x}"
        joint = config.task == "base-to-new"
        tests = ("base", "new", "joint") if joint else (config.dataset, *config.targets)
        results, said = {}, {}
        for test in tests:
            results[test], arrays = made_up_test(config, test, 0.75 - lost)
            said |= {f"{test}/{key}": value for key, value in arrays.items()}
        if joint:
            results["H"] = {
                "accuracy": harmonic_mean(results["base"]["accuracy"], results["new"]["accuracy"])
            }
        train = {"sampled_cosine": cosines[label], "posterior_std": 0.05} if label in cosines else {}
        self._said[identity] = said
        self._records[config] = RunRecord(
            id=identity,
            config=config,
            settings={},
            code="c",
            commit="abc1234",
            machine={"device": "cpu", "torch": "2.0", "float32_products": "highest"},
            library="1",
            data=DataFacts(config.dataset, "d" * 64, f"{config.seed}"),
            backbone=BackboneFacts("lite", "f"),
            train=train,
            results=results,
            seconds=1.0,
            finished="2024-01-01T00:00:00+00:00",
        )

    def records(self):
        return list(self._records.values())

    def arrays(self, identity):
        return self._said[identity]


def made_up_test(config, test, accuracy):
    """Images of fixed difficulty, those below the method's accuracy (give or take the draw's luck) right."""
    difficulty = np.random.default_rng(len(config.dataset) + 10 * len(test)).permutation(IMAGES) / IMAGES
    right = difficulty < accuracy + 0.01 * (config.seed % 3 - 1)
    labels = np.arange(IMAGES, dtype=np.int32) % 10
    likelihood = np.where(right, np.log(0.8), np.log(0.1)).astype(np.float32)
    arrays = {
        "label": labels,
        "predicted": np.where(right, labels, (labels + 1) % 10).astype(np.int32),
        "confidence": np.full(IMAGES, 0.8, dtype=np.float32),
        "log_likelihood": likelihood,
        "entropy": (labels + difficulty).astype(np.float32),
        "mutual_information": np.zeros(IMAGES, dtype=np.float32),
        "none_of_these": (labels + accuracy * difficulty).astype(np.float32),
    }
    figures = {
        "accuracy": float(right.mean()),
        "nll": float(-likelihood.mean()),
        "ece": float(abs(right.mean() - 0.8)),
    }
    if test == "joint":
        figures |= {"auroc_entropy": 0.9, "auroc_mutual_information": 0.5, "auroc_none_of_these": 0.9}
    return figures, arrays


def made(store=None):
    return summarise(store or Store(), load_parts(NAMES), quiet, resamples=400)


@pytest.fixture(scope="module")
def study():
    return made()


def verdicts(study):
    return [claim.verdict for claim in judging.claims(study)]


def test_cells_are_means_and_spreads_over_all_seeds_of_both_recipes(study):
    cells = study["parts"]["few-shot"]["cells"]
    assert cells["CoOp"]["Caltech101, 1 shot"]["seeds"] == 5
    assert cells["CoOp"]["Caltech101, 16 shots"]["seeds"] == 3
    shares = [(np.arange(IMAGES) / IMAGES < 0.55 + 0.01 * (s % 3 - 1)).mean() for s in range(1, 6)]
    mean, std, difference, low, high = cells["CoOp"]["Caltech101, 1 shot"]["accuracy"]
    assert (mean, std) == pytest.approx((np.mean(shares), np.std(shares, ddof=1)), abs=1e-4)
    assert difference == pytest.approx(0.2, abs=0.005) and low < difference < high
    first = cells["PBPrompt"]["Caltech101, 1 shot"]["accuracy"]
    assert len(first) == 2 and first[0] - mean == pytest.approx(difference, abs=2e-4)


def test_the_average_interval_is_narrower_than_a_datasets(study):
    cells = study["parts"]["few-shot"]["cells"]["CoOp"]
    widths = [
        cells[key]["accuracy"][4] - cells[key]["accuracy"][3]
        for key in ("Caltech101, 4 shots", "average, 4 shots")
    ]
    assert widths[0] / 3 < widths[1] < widths[0] / 1.5  # four datasets: about half


def test_h_is_of_the_averages_and_leaves_out_what_stands_apart(study):
    cells = study["parts"]["base-to-new"]["cells"]["VPT"]
    base, new = (cells[f"average, {half}"]["accuracy"][0] for half in ("Base", "New"))
    assert cells["average, H"]["accuracy"][0] == pytest.approx(harmonic_mean(base, new), abs=1e-4)
    counted = [
        cells[f"{name}, Base"]["accuracy"][0] for name in ("Caltech101", "OxfordPets", "Grocery Store photo")
    ]
    assert base == pytest.approx(np.mean(counted), abs=1e-4)
    assert "Flowers102, Base" in cells
    assert cells["average, Joint"]["auroc_mutual_information"][:2] == [0.5, 0]


def test_telling_unknown_classes_is_compared_by_the_images_and_only_where_runs_kept_them(study):
    assert len(study["parts"]["base-to-new"]["cells"]["VPT"]["average, Joint"]["auroc_none_of_these"]) == 5
    store = Store(names=["base-to-new"])
    for run in store.records():
        store.arrays(run.id).pop("joint/none_of_these")
    older = summarise(store, load_parts(["base-to-new"]), quiet, resamples=400)["parts"]["base-to-new"]
    assert len(older["cells"]["VPT"]["average, Joint"]["auroc_none_of_these"]) == 2


def test_verdicts_follow_the_figures(study):
    assert verdicts(study) == ["holds"] * 7


@pytest.mark.parametrize(
    ("change", "number", "verdict"),
    [
        ({"CoOp": -0.1}, 1, "does not hold"),
        ({"CoOp": 0.0}, 1, "cannot be told"),
        ({"SHIP": -0.1}, 2, "does not hold"),
        ({"B-Prompt": -0.1}, 3, "does not hold"),
        ({"P-Prompt": 0.0}, 3, "cannot be told"),
        ({"PBPrompt, OT": 0.1}, 4, "holds"),
        ({"PBPrompt, OT": -0.1}, 4, "does not hold"),
        ({"PBPrompt, w/o-S": -0.1}, 5, "does not hold"),
        ({"η = 0.1": -0.1}, 6, "does not hold"),
        ({"λ = 0.25": -0.1}, 6, "does not hold"),
    ],
)
def test_verdicts_flip_with_the_figures(change, number, verdict):
    names = {6: ["eta", "lambda"], 2: ["base-to-new"], 1: ["few-shot"], 5: ["few-shot"]}.get(
        number, NAMES[:2]
    )
    few = lambda label, config: config.shots in (1, 2, 4, 16)  # noqa: E731
    changed = summarise(
        Store(WORSE | change, wanted=few, names=names), load_parts(names), quiet, resamples=400
    )
    assert verdicts(changed)[number - 1] == verdict


@pytest.mark.parametrize(
    ("cosines", "verdict"),
    [
        ({"PBPrompt": 0.97, "B-Prompt": 0.99}, "does not hold"),  # collapsed
        ({"PBPrompt": 0.9, "B-Prompt": 0.8}, "does not hold"),  # the transport does the opposite
        ({"PBPrompt": 0.8, "B-Prompt": 0.8}, "does not hold"),
        ({"PBPrompt": 0.8, "B-Prompt": 0.8005}, "does not hold"),  # a difference that nobody would see
        ({"PBPrompt": 0.8, "B-Prompt": 0.805}, "holds"),
        ({"PBPrompt": 0.8}, "cannot be told"),
    ],
)
def test_diversity_needs_both_no_collapse_and_an_effect_of_the_transport(cosines, verdict):
    few = lambda label, config: label in ("PBPrompt", "B-Prompt") and config.shots < 8  # noqa: E731
    store = Store(cosines=cosines, wanted=few, names=["few-shot"])
    changed = summarise(store, load_parts(["few-shot"]), quiet, resamples=400)
    assert verdicts(changed)[6] == verdict


def test_rows_that_were_not_run_leave_claims_open_and_are_named(tmp_path):
    def wanted(label, config):
        return label != "SHIP" and not (label == "CoOp" and config.shots == 16 and config.seed == 2)

    cut = made(Store(wanted=wanted))
    assert verdicts(cut)[1] == "cannot be told"
    assert cut["parts"]["base-to-new"]["missing"]["SHIP"] == ["all of it"]
    assert cut["parts"]["few-shot"]["missing"]["CoOp"] == ["every dataset at 16, seed 2"]
    assert cut["parts"]["few-shot"]["missing"]["PLOT"] == ["all of it"]
    assert not cut["parts"]["eta"]["missing"]
    page.write_page(cut, "{{missing}}\n{{claims}}", tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert re.search(r"^- base-to-new, .*SHIP.*: all of it$", text, re.M)
    assert "- kl: not in this summary" in text
    assert "PBPrompt − SHIP, accuracy, points (base-to-new, average, H): not run: open" in text


def test_a_row_measured_on_other_images_is_not_compared():
    store = Store(wanted=lambda label, config: config.shots == 1, names=["few-shot"])
    odd = next(r for r in store.records() if r.config.method == "coop")
    store.arrays(odd.id)["caltech101/label"] = np.roll(np.arange(IMAGES, dtype=np.int32) % 10, 1)
    found = summarise(store, load_parts(["few-shot"]), quiet, resamples=400)
    assert len(found["parts"]["few-shot"]["cells"]["CoOp"]["Caltech101, 1 shot"]["accuracy"]) == 2
    assert found["notes"] == [f"not compared: run {odd.id} was tested on other images of caltech101"]


def test_an_overview_has_all_three_figures_of_the_columns_that_are_wanted(study):
    cells = study["parts"]["few-shot"]["cells"]["CoOp"]["average, 4 shots"]
    lines = page.overview(study, "few-shot", "average").splitlines()
    assert lines[0].startswith("| accuracy, % / NLL / ECE, % | 1 shot | 2 shots | 4 shots |")
    row = next(line for line in lines if line.startswith("| CoOp |")).split(" | ")
    accuracy, nll, _ = row[3].split(" / ")
    assert accuracy == f"{100 * cells['accuracy'][0]:.2f}↓" and nll.startswith(f"{cells['nll'][0]:.3f}")
    one = page.overview(study, "few-shot", "Caltech101, 1 shot").splitlines()[0]
    assert one == "| accuracy, % / NLL / ECE, % | 1 shot |"


def test_runs_of_older_code_do_not_mix_with_newer_ones():
    store = Store(wanted=lambda label, config: config.shots == 1, names=["few-shot"])
    *_, last = (r for r in store.records() if r.config.method == "coop" and r.config.dataset == "caltech101")
    store._records[last.config] = replace(last, code="newer")
    part = summarise(store, load_parts(["few-shot"]), quiet, resamples=400)["parts"]["few-shot"]
    assert part["cells"]["CoOp"]["Caltech101, 1 shot"]["seeds"] == 1
    assert len(part["cells"]["CoOp"]["Caltech101, 1 shot"]["accuracy"]) == 3  # one draw: no interval
    assert len(part["cells"]["CoOp"]["OxfordPets, 1 shot"]["accuracy"]) == 5
    assert set(part["missing"]["CoOp"]) == {
        "caltech101 at 1, seeds 1, 2, 3, 4",
        "every dataset at 2, 4, seeds 1, 2, 3, 4, 5",
        "every dataset at 8, 16, seeds 1, 2, 3",
    }


def test_losses_say_who_is_better():
    worse = {"CoOp": -0.1, "VPT": 0.2, "zero-shot": -0.2, "B-Prompt": 0.1}
    store = Store(worse, names=["few-shot"])
    study = summarise(store, load_parts(["few-shot"]), quiet, resamples=400)
    lost = {(row, metric): len(columns) for _, row, metric, columns in judging.losses(study, ["few-shot"])}
    assert set(lost) == {(row, metric) for row in ("CoOp", "zero-shot") for metric in ("accuracy", "nll")}


def test_the_page_is_whole_small_and_takes_every_figure_from_the_summary(study, tmp_path):
    out = tmp_path / "docs" / "study.md"
    template = command.template_of("prompts")
    text = command.dense(study)
    assert len(text) < 300_000 and json.loads(text) == study
    page.write_page(json.loads(text), template, out)
    written = out.read_text()
    assert "{{" not in written and "None" not in written and "nan" not in written
    for image in [line.split("](")[1][:-1] for line in written.splitlines() if line.startswith("![")]:
        assert (out.parent / image).stat().st_size > 1000
    assert "| PBPrompt, OT | " in written and "Not run." in written  # the parts without runs
    once = written
    page.write_page(json.loads(text), template, out)
    assert out.read_text() == once


def test_single_figures_stand_in_the_text(study, tmp_path):
    mean, _, *lead = study["parts"]["few-shot"]["cells"]["CoOp"]["average, 1 shot"]["accuracy"]
    where = "few-shot; CoOp; average, 1 shot; accuracy"
    text = f"{{{{value {where}}}}} {{{{lead {where}}}}}"
    page.write_page(study, text, tmp_path / "p.md")
    shown = "{:+.2f} [{:+.2f}, {:+.2f}]".format(*(100 * value for value in lead))
    assert (tmp_path / "p.md").read_text().strip() == f"{100 * mean:.2f} {shown}".replace("-", "−")
    for slip, message in [
        ("{{vlue few-shot}}", "unknown"),
        ("{{table fewshot}}", "names no part"),
        ("{{value few-shot; CoOp; average, 3 shots; accuracy}}", "no column 'average, 3 shots'"),
        ("{{value few-shot; CoOp}}", "between the words"),
    ]:
        with pytest.raises(InputError, match=message):
            page.write_page(study, slip, tmp_path / "p.md")


def test_an_empty_store_says_what_to_run(tmp_path):
    with pytest.raises(InputError, match="run the recipes of benchmarks/study/recipes first"):
        summarise(RunStore(tmp_path), load_parts(["eta"]), quiet, resamples=400)


def test_the_five_seeds_are_of_the_same_rows():
    whole, more = (study_recipe(name) for name in STUDIES["prompts"]["few-shot"])
    assert whole.rows == more.rows and whole.datasets == more.datasets
    assert set(more.shots) < set(whole.shots) and set(more.seeds) > set(whole.seeds)


KNOBS = {
    "eta": "ct_weight",
    "lambda": "ct_balance",
    "draws": "train_samples",
    "kl": "kl_weight",
    "temperature": "ct_temperature",
    "tokens": "tokens",
    "epochs": "epochs",
    "samples": "",
}


@pytest.mark.parametrize("name", KNOBS)
def test_an_ablation_starts_at_the_default_and_its_labels_are_true(name):
    (part,) = load_parts([name])
    first = part.rows[0]
    assert (first.preset, first.variant, first.overrides, first.samples) == ("default", "", (), 20)
    for row in part.rows:
        config = make_config(find_method(row.method), row.preset, row.variant, row.overrides)
        value = getattr(config, KNOBS[name]) if KNOBS[name] else row.samples
        assert float(value) in [float(w) for w in row.label.replace(",", "").split() if w[0].isdigit()], row
    assert set(study_recipe("photos-few-shot").datasets) > set(part.recipe.datasets)


def test_steps_are_those_that_training_takes(tiny_runs=((4, "few-shot"), (2, "base-to-new"))):
    costs = DryRun("lite")
    for shots, task in tiny_runs:
        recipe = load_recipe("sample-few-shot")
        (config,) = [c for label, c in recipe.narrowed(shots=[shots], seeds=[1]).expand() if label == "CoOp"]
        config = type(config)(**{**asdict(config), "task": task})
        classes = len(open_dataset("sample").classes)
        images = shots * (classes if task == "few-shot" else -(-classes // 2))
        assert costs.steps(config) == 50 * (images // min(32, images))
    assert shots_in_words([1, 2, 4]) == "1, 2 and 4 shots"


def test_a_plan_spreads_over_as_many_places_as_share_its_mass():
    plans = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(looking.spread(plans), torch.tensor([4.0, 2.0, 1.0]))


def test_maps_find_the_patch_that_is_like_the_prompt(tiny_vit):
    kind = find_method("pbprompt")
    method = build_method(kind, make_config(kind, overrides=["ct_temperature=0.01"]), tiny_vit, 1)
    method.prepare(["cat", "dog"], "a photo of a {}.")
    prompts = predictive(method).bank.mean(0)
    rows, columns = tiny_vit.grid
    patches = -prompts[[0, 1, 1]].unsqueeze(1).repeat(1, rows * columns, 1)
    patches[:, 5] = prompts[[0, 1, 1]]  # all other patches point away from the class
    labels = torch.tensor([0, 1, 1])
    found = looking.look(method, Features(prompts[labels], patches.half(), labels))
    assert np.argmax(found["map"]) == 5 and found["patches"] == pytest.approx(1.0, abs=1e-3)
    assert np.sum(found["map"]) == pytest.approx(1.0)


def test_maps_are_drawn_with_their_table(tmp_path, monkeypatch):
    row = {"patches": 3.0, "classes": 1.5, "map": [[0.4, 0.2], [0.2, 0.2]]}
    about = {"shots": 4, "seed": 1, "commit": "abc", "machine": {"device": "cpu"}}
    found = {"pets": {"classes": 2, "rows": {"PBPrompt": row, "B-Prompt": row}}}
    monkeypatch.setattr(looking, "FILE", tmp_path / "maps.json")
    looking.FILE.write_text(json.dumps(about | {"datasets": found}))
    text = looking.draw_maps(tmp_path)
    assert "| pets | PBPrompt | 3.0 of 4 | 1.60 | 1.5 of 2 |" in text
    assert (tmp_path / looking.FIGURE).read_text().startswith("<?xml")

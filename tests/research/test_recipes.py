import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pbprompt import registry
from pbprompt.errors import InputError
from pbprompt.learners.method import make_config
from pbprompt.prompts.rivals.coop import CoOp
from pbprompt.prompts.rivals.ship import SHIP
from pbprompt.registry import find_method
from pbprompt.research.pictures import find_picture, picture_names
from pbprompt.research.protocol import prepare_run
from pbprompt.research.recipes import load_recipe, recipe_names
from pbprompt.research.report.published import published, tables
from pbprompt.vision.images import catalog

PAPER = [name for name in recipe_names() if not name.startswith("sample-")]
SCRIPT = Path(__file__).parents[2] / "scripts" / "recipe_settings.py"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CHECKOUT = sorted(map(str, [*BENCHMARKS.glob("study/recipes/*.yaml"), *BENCHMARKS.glob("readings/*.yaml")]))
GOOD = """
title: Own
task: few-shot
backbone: lite
datasets: [sample]
rows:
  - {method: coop, overrides: {epochs: 2}}
  - {label: zero, method: zeroshot}
"""


@pytest.mark.parametrize("name", recipe_names() + CHECKOUT, ids=lambda name: Path(name).stem)
def test_every_recipe_names_what_there_is(name, monkeypatch):
    monkeypatch.setattr(registry, "_methods", registry.methods())
    monkeypatch.setenv(registry.PLUGINS, str(BENCHMARKS / "study" / "scikit_learn.py"))
    monkeypatch.delitem(sys.modules, "pbprompt_plugin_scikit_learn", raising=False)
    recipe = load_recipe(name)
    for dataset in (*recipe.datasets, *recipe.targets):
        if "/" in dataset:  # a folder, which the checkout does not have
            continue
        benchmark, _, domain = dataset.partition(":")
        assert benchmark in catalog.benchmarks(), dataset
        domains = dict(catalog.find(benchmark).domains)
        assert not domain or not domains or domain in domains, dataset
    for row in recipe.rows:
        kind = find_method(row.method)
        for dataset in recipe.datasets:
            make_config(kind, row.preset, row.variant, row.overrides_on(dataset))
        assert recipe.task in ("few-shot", "domain-shift") or kind.takes_new_names
    runs = recipe.expand()
    assert len(runs) == len({config for _, config in runs})
    assert len(runs) == len(recipe.rows) * len(recipe.datasets) * len(recipe.shots) * len(recipe.seeds)
    assert bool(recipe.targets) == (recipe.task in ("cross-dataset", "domain-shift"))


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_recipes_follow_its_protocol(name):
    recipe = load_recipe(name)
    assert recipe.backbone in ("ViT-B/16", "RN50") and recipe.seeds == (1, 2, 3) and recipe.views == "fresh"
    known = {figure.method for table in recipe.published for figure in published(table)}
    assert not known or any((row.published or row.label) in known for row in recipe.rows)


def test_every_table_of_accuracies_has_a_recipe():
    covered = {table for name in PAPER for table in load_recipe(name).published}
    assert covered == set(tables()) - {"computation_cost"}  # that one is timing: research/costs.py


@pytest.mark.parametrize(
    "name",
    [name for name in recipe_names() if name not in PAPER] + CHECKOUT,
    ids=lambda name: Path(name).stem,
)
def test_the_small_recipes_claim_nothing_of_the_paper(name):
    recipe = load_recipe(name)
    assert recipe.backbone == "lite" and not recipe.published and "not comparable" in recipe.note


def test_the_table_of_settings_is_current():
    spec = importlib.util.spec_from_file_location("recipe_settings", SCRIPT)
    settings = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(settings)
    assert settings.PAGE.read_text(encoding="utf-8") == settings.page(), f"run python {SCRIPT}"
    recipe = load_recipe("base-to-new-vit")
    (row,) = [row for row in recipe.rows if row.label == "CoOp"]
    assert settings.differences(recipe, row) == ("CoCoOp's paper", "same")
    other = settings.differences(recipe, replace(row, by_dataset={}))[1]
    assert other == "`epochs` 0, published 50 on imagenet"


def test_expand_takes_a_part_and_puts_seeds_outermost(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(GOOD)
    recipe = load_recipe(str(path))
    assert (recipe.name, recipe.published, recipe.views) == ("own", (), "centre")
    runs = recipe.narrowed(shots=[1, 2], seeds=[5, 7]).expand()
    assert [config.seed for _, config in runs] == [5] * 4 + [7] * 4
    assert [label for label, _ in runs[:2]] == ["coop", "zero"]
    assert runs[0][1].overrides == ("epochs=2",)


def test_a_recipe_may_choose_by_the_validation_split(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(GOOD.replace("backbone: lite", "backbone: lite\nsplit: val"))
    assert {config.split for _, config in load_recipe(str(path)).expand()} == {"val"}


@pytest.mark.parametrize("changes", ["epochs: 2, batch_size: 1", "batch_size: 1, epochs: 2"])
def test_settings_in_any_order_are_one_run(tmp_path, changes):
    path = tmp_path / "own.yaml"
    path.write_text(GOOD.replace("epochs: 2", changes))
    recipe = load_recipe(str(path))
    assert recipe.expand()[0][1].overrides == ("batch_size=1", "epochs=2")
    row = recipe.rows[0]
    assert replace(row, overrides=(*row.overrides, "epochs=9", "batch_size=4")).overrides == (
        "batch_size=1", "batch_size=4", "epochs=2", "epochs=9"
    )  # fmt: skip


def test_a_row_may_have_settings_for_one_dataset(tmp_path):
    path = tmp_path / "own.yaml"
    own = "{epochs: 2}, by_dataset: {dtd: {epochs: 9, tokens: 8}}"
    path.write_text(GOOD.replace("[sample]", "[sample, dtd]").replace("{epochs: 2}", own))
    recipe = load_recipe(str(path))
    settings = {config.dataset: config.overrides for label, config in recipe.expand() if label == "coop"}
    assert settings == {"sample": ("epochs=2",), "dtd": ("epochs=2", "epochs=9", "tokens=8")}
    row = recipe.rows[0].changed(["epochs=1"])
    assert [make_config(CoOp, overrides=row.overrides_on(name)).epochs for name in settings] == [1, 1]


def test_published_figures_have_the_settings_they_were_made_with():
    def settings(recipe, label, dataset):
        (row,) = [row for row in load_recipe(recipe).rows if row.label == label]
        return make_config(find_method(row.method), row.preset, row.variant, row.overrides_on(dataset))

    assert settings("base-to-new-vit", "CoOp", "imagenet").epochs == 50
    assert settings("base-to-new-vit", "CoOp", "dtd").epochs == 0
    assert settings("few-shot-vit", "CoCoOp", "dtd").epochs == 0  # by shots, as the paper ran it again
    assert settings("cross-dataset", "CoOp", "imagenet").words == "a photo of a"
    assert settings("few-shot-vit", "PLOT", "imagenet").add_global
    assert not settings("few-shot-vit", "PLOT", "dtd").add_global
    assert settings("few-shot-rn50", "CoOp", "dtd").tokens == 16
    assert settings("base-to-new-vit", "CoOp+VPT", "oxford_pets").train_samples == 40
    assert settings("base-to-new-vit", "CoOp+SHIP", "dtd") == make_config(SHIP, "published")
    assert settings("base-to-new-vit", "CoOp+SHIP", "imagenet") == make_config(
        SHIP,
        "published-imagenet",
        overrides=["momentum=0.0"],  # which AdamW does not look at
    )


@pytest.mark.parametrize("name", PAPER)
def test_every_row_of_the_papers_own_method_has_a_literal_one(name):
    rows = [row for row in load_recipe(name).rows if row.method == "pbprompt"]
    literal = {(row.variant, row.samples) for row in rows if row.preset == "literal"}
    assert literal == {(row.variant, row.samples) for row in rows}


@pytest.mark.parametrize("name", PAPER)
def test_printed_figures_of_the_papers_method_stand_beside_the_papers_settings_alone(name):
    recipe = load_recipe(name)
    for row in recipe.rows:
        printed = {figure.method for table in recipe.published for figure in published(table)}
        if row.method == "pbprompt" and (row.published or row.label) in printed:
            assert row.preset == "literal", row.label


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("task: few-shot", "task: few"), "'task' is 'few': choose one of few-shot"),
        (("title: Own", ""), "'title' is missing"),
        (("datasets:", "dataset:"), "unknown key 'dataset': did you mean 'datasets'"),
        (("method: coop", "methd: coop"), "row 1: unknown key 'methd': did you mean 'method'"),
        (("{epochs: 2}", "[epochs]"), r"row 1: overrides is \['epochs'\]"),
        (("{epochs: 2}", "{}, by_dataset: 2"), "row 1: by_dataset is 2"),
        (("{epochs: 2}", "{}, by_dataset: {dtd: {}}"), "by_dataset of 'coop' names 'dtd'"),
        (("label: zero", "label: coop"), "two rows have the label 'coop'"),
        (("title: Own", "title: Own\nshots: [one]"), "'shots' is 'one': it takes int"),
        (("title: Own", "title: Own\nviews: many"), "views is 'many'"),
        (("title: Own", "title: Own\nsplit: train"), "'split' is 'train': choose one of test, val"),
        (("title: Own", "title: Own\napart: [dtd]"), "apart names 'dtd': choose among the datasets"),
        (("title: Own", "title: Own\nseeds:"), "seeds is empty"),
        (("label: zero", "samples: 0"), "samples is 0"),
        (("title: Own", "title: ["), "not YAML"),
        (("title: Own", "title: 2024-13-45"), "not YAML"),
        (("title: Own", f"title: {'[' * 5000}"), "not YAML"),
        (("title: Own", "title: [Own]"), r"own.yaml: key 'title' is \['Own'\]: it takes str"),
        (("[sample]", "[{sample: 1}]"), "key 'datasets' is {'sample': 1}: it takes str"),
        (("method: coop", "method: 5"), "row 1: key 'method' is 5: it takes str"),
    ],
)
def test_bad_recipes_say_what_to_fix(tmp_path, change, message):
    path = tmp_path / "own.yaml"
    path.write_text(GOOD.replace(*change))
    with pytest.raises(InputError, match=message):
        load_recipe(str(path))


def test_a_recipe_that_is_no_text_is_told(tmp_path):
    (tmp_path / "own.yaml").write_bytes(GOOD.encode("utf-16"))
    with pytest.raises(InputError, match=r"own\.yaml: not UTF-8 text"):
        load_recipe(str(tmp_path / "own.yaml"))


def test_unknown_names_have_a_suggestion(tmp_path):
    with pytest.raises(InputError, match="did you mean 'sample-few-shot'"):
        load_recipe("sample-fewshot")
    with pytest.raises(InputError, match="no such recipe file"):
        load_recipe(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize("name", picture_names())
def test_every_picture_names_what_there_is(name):
    picture = find_picture(name)
    assert all(dataset.partition(":")[0] in catalog.benchmarks() for dataset in picture.datasets)
    make_config(find_method(picture.method), picture.preset, overrides=picture.overrides)


PICTURE = "title: Own\npicture: captions\nbackbone: lite\ndatasets: sample\ncaptions: [a cat, a dog]\n"


def test_a_picture_of_ones_own(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(PICTURE)
    picture = find_picture(str(file))
    assert (picture.name, picture.datasets, picture.captions) == ("own", ("sample",), ("a cat", "a dog"))
    file.write_text(GOOD)
    assert find_picture(str(file)) is None and find_picture("few-shot-vit") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("picture: captions", "picture: bars"), "'picture' is 'bars': choose one of heat-maps, captions"),
        (("title: Own\n", ""), "'title' is missing"),
        (("backbone: lite", "backbone: lite\nshots: none"), "'shots' is 'none': it takes int"),
        (("title: Own", "titel: Own"), "unknown key 'titel': did you mean 'title'"),
        (("[a cat, a dog]", "[]"), "captions is empty"),
    ],
)
def test_pictures_with_mistakes(tmp_path, change, message):
    file = tmp_path / "own.yaml"
    file.write_text(PICTURE.replace(*change))
    with pytest.raises(InputError, match=message):
        find_picture(str(file))


def test_the_title_names_a_dataset_that_is_none_of_the_recipes():
    recipe = load_recipe("sample-few-shot")
    assert recipe.narrowed(["photos/"]).title == f"{recipe.title}; here on photos/"
    assert recipe.narrowed(["sample"]).title == recipe.title


def test_rows_have_the_precision_of_their_authors(tmp_path):
    """Half before CoOp and those who build on it; PBPrompt's own code is not public."""
    rows = {row.label: row.precision for row in load_recipe("few-shot-vit").rows}
    assert rows["CoOp"] == rows["CoCoOp"] == rows["PLOT"] == "float16" and rows["PBPrompt"] == "float32"
    whole = load_recipe("few-shot-vit").narrowed(precision="bfloat16")
    assert {run.precision for _, run in whole.expand()} == {"bfloat16"}
    (tmp_path / "own.yaml").write_text(GOOD.replace("method: coop,", "method: coop, precision: half,"))
    with pytest.raises(InputError, match="row 1: precision is 'half': choose float32, bfloat16, float16"):
        load_recipe(str(tmp_path / "own.yaml"))


def test_a_file_of_descriptions_becomes_what_it_says(tmp_path):
    (tmp_path / "said.json").write_text(
        '{"Bird": ["it has wings: \\"two\\"", "it flies"], "clock": "it ticks"}'
    )
    row = "{label: described, method: zeroshot, by_dataset: {sample: {descriptions: said.json}}}"
    recipe = tmp_path / "own.yaml"
    recipe.write_text(f"{GOOD}  - {row}\n")
    (run,) = [
        run for label, run in load_recipe(str(recipe)).expand() if label == "described" and run.seed == 1
    ]
    kind = find_method("zeroshot")
    told = make_config(kind, run.preset, run.variant, run.overrides).descriptions
    assert told == (("Bird", 'it has wings: "two"', "it flies"), ("clock", "it ticks"))
    assert prepare_run(run).settings.descriptions == told and len(run.row()) < 100 + len(str(told))
    (tmp_path / "said.json").write_text('{"bat": "it hangs"}')
    (_, other) = load_recipe(str(recipe)).expand()[-1]
    assert other.row() != run.row()
    with pytest.raises(InputError, match="descriptions for sample: no class is called 'bat'"):
        prepare_run(other)
    recipe.write_text(f"{GOOD}  - {row.replace('said', 'gone')}\n")
    with pytest.raises(InputError, match=r"gone\.json"):
        load_recipe(str(recipe))

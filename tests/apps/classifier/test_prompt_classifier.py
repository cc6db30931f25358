import inspect
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from calibrated import calibrated_by
from PIL import Image

from pbprompt import InputError, PromptClassifier
from pbprompt.apps.cli.fit import fit
from pbprompt.learners.fit_options import FitOptions
from pbprompt.learners.method import make_config
from pbprompt.model.learn import tune
from pbprompt.model.predictor import predictive
from pbprompt.registry import find_method
from pbprompt.vision.features.cache import FeatureCache, Features
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.items import Dataset, Item
from pbprompt.vision.images.names import read_name
from pbprompt.vision.images.sources import open_dataset
from pbprompt.vision.towers.backbone import Encoded

NAMES = ("clock", "fruit", "mammal")
BRIEF = {"epochs": 2, "batch_size": 6}
BRIEF_WORDS = ("epochs=2", "batch_size=6")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Three classes of the sample set in train, val and test folders: 3, 2 and 2 images each."""
    sample = open_dataset("sample:openmoji")
    root = tmp_path_factory.mktemp("photos")
    for split, count in (("train", 3), ("val", 2), ("test", 2)):
        for name in NAMES:
            label = sample.classes.index(name)
            items = [item for item in sample.split(split) if item.label == label]
            folder = root / split / name
            folder.mkdir(parents=True)
            for item in items[:count]:
                shutil.copy(sample.file(item), folder)
    return root


def paths(photos: Path, split: str) -> tuple[list[Path], list[str]]:
    files = sorted((photos / split).glob("*/*"))
    return files, [file.parent.name for file in files]


@pytest.fixture(scope="module")
def fitted(photos) -> PromptClassifier:
    return PromptClassifier("pbprompt", settings=BRIEF, samples=4, random_state=3).fit(
        *paths(photos, "train")
    )


def test_fit_on_images_is_the_librarys_tuning(photos, lite, fitted):
    files, labels = paths(photos, "train")
    items = tuple(Item(str(file), NAMES.index(label)) for file, label in zip(files, labels, strict=True))
    dataset = Dataset("mine", Path("/"), NAMES, items)
    kind, bank = find_method("pbprompt"), FeatureCache(lite, progress=False)
    config = make_config(kind, overrides=BRIEF_WORDS)
    method, _ = tune(dataset, bank, kind, config, FitOptions(shots=3, seed=3, progress=False))
    test, _ = paths(photos, "test")
    features = bank.encode(Path("/"), [Item(str(file), 0) for file in test])
    expected = predictive(method, 4)(Encoded(features.global_, features.patches))
    said = fitted.predict_uncertainty(test)
    for name in ("probabilities", "entropy", "expected_entropy", "mutual_information", "spread"):
        np.testing.assert_allclose(getattr(said, name), getattr(expected, name), atol=1e-5, err_msg=name)
    np.testing.assert_allclose(said.entropy, said.expected_entropy + said.mutual_information, atol=1e-5)
    np.testing.assert_array_equal(fitted.predict_proba(test), said.probabilities)
    assert fitted.predict(test).tolist() == [NAMES[row] for row in expected.probabilities.argmax(1)]
    assert fitted.classes_.tolist() == list(NAMES)
    assert not hasattr(fitted, "n_features_in_")


def test_fit_on_a_folder_is_what_the_command_line_does(photos, lite):
    dataset = open_dataset(photos)
    drawn = draw(dataset, 2, 5)
    kind, bank = find_method("pbprompt"), FeatureCache(lite, progress=False)
    config = make_config(kind, variant="b-prompt", overrides=BRIEF_WORDS)
    method, _ = tune(drawn.apply(dataset), bank, kind, config, FitOptions(shots=2, seed=5, progress=False))
    predictor = predictive(method, 3)
    classifier = PromptClassifier(
        "pbprompt",
        variant="b-prompt",
        settings=BRIEF,
        shots=2,
        samples=3,
        random_state=5,
        template="a drawing of a {}.",
    )
    classifier.fit(photos)
    test = bank.encode(dataset.root, dataset.test)
    expected = predictor(Encoded(test.global_, test.patches)).probabilities
    files = [dataset.file(item) for item in dataset.test]
    np.testing.assert_allclose(classifier.predict_proba(files), expected, atol=1e-5)
    assert classifier.calibration_ == calibrated_by(predictor, bank.encode(dataset.root, dataset.val))
    assert classifier.method_.template == "a drawing of a {}."


def test_every_kind_of_image_is_answered_alike(photos, lite, fitted):
    files, labels = paths(photos, "test")
    images = [Image.open(file) for file in files]
    arrays = np.stack([np.asarray(image.convert("RGB")) for image in images])
    with torch.inference_mode():
        encoded = lite.image(torch.stack([lite.preprocess(image.convert("RGB")) for image in images]))
    expected = fitted.predict_proba(files)
    for x in (images, arrays, encoded, encoded.global_.numpy(), fitted.encode(files)):
        np.testing.assert_allclose(fitted.predict_proba(x), expected, atol=1e-4)
    right = fitted.predict(files) == np.array(labels)
    assert fitted.score(files, labels) == right.mean()
    assert fitted.score(files, labels, sample_weight=right) == 1.0


def test_fit_takes_encoded_images_for_the_images_themselves(photos, fitted):
    files, labels = paths(photos, "train")
    again = PromptClassifier(**fitted.get_params(deep=False)).fit(fitted.encode(files), labels)
    np.testing.assert_allclose(again.predict_proba(files), fitted.predict_proba(files), atol=1e-5)
    assert again.n_features_in_ == 256


def test_global_vectors_are_their_own_patches(photos, lite, fitted):
    files, labels = paths(photos, "train")
    vectors = fitted.encode(files)[:, 0]
    alone = PromptClassifier("pbprompt", settings=BRIEF, samples=2).fit(vectors, labels)
    point = PromptClassifier("pbprompt", settings=BRIEF, samples=2).fit(
        np.stack([vectors, vectors], axis=1), labels
    )
    np.testing.assert_array_equal(alone.predict_proba(vectors), point.predict_proba(vectors))
    without = PromptClassifier("pbprompt", variant="b-prompt", settings=BRIEF, samples=2).fit(vectors, labels)
    assert np.abs(alone.predict_proba(vectors) - without.predict_proba(vectors)).max() > 1e-6


def test_the_random_state_decides(photos, fitted):
    train, test = paths(photos, "train"), paths(photos, "test")[0]
    same = PromptClassifier("pbprompt", settings=BRIEF, samples=4, random_state=3).fit(*train)
    other = PromptClassifier("pbprompt", settings=BRIEF, samples=4, random_state=4).fit(*train)
    np.testing.assert_array_equal(same.predict_proba(test), fitted.predict_proba(test))
    assert np.abs(other.predict_proba(test) - fitted.predict_proba(test)).max() > 1e-6


def test_labels_that_are_no_names(photos, fitted):
    """The columns follow the sorted labels, whatever the names' order is."""
    files, names = paths(photos, "train")
    numbers = {"clock": 30, "fruit": 7, "mammal": 12}
    y = np.array([numbers[name] for name in names])
    named = PromptClassifier("tip-adapter", class_names={number: name for name, number in numbers.items()})
    plain = PromptClassifier("tip-adapter").fit(files, names)
    named.fit(files, y)
    assert named.classes_.tolist() == [7, 12, 30]
    assert [*map(read_name, named.method_.classes)] == ["fruit", "mammal", "clock"]
    np.testing.assert_allclose(
        named.predict_proba(files), plain.predict_proba(files)[:, [1, 2, 0]], atol=1e-6
    )
    assert named.predict(files).tolist() == [numbers[name] for name in plain.predict(files)]
    assert named.score(files, y) == plain.score(files, names)
    unnamed = PromptClassifier("nearest-mean").fit(files, y)
    assert unnamed.method_.classes == ("7", "12", "30")


def test_images_whose_classes_come_otherwise(photos):
    files, names = paths(photos, "train")
    numbers = {name: place for place, name in enumerate(NAMES)}
    classifier = PromptClassifier("conjugate", class_names=list(NAMES))
    classifier.fit(files, [numbers[name] for name in names])
    trained = classifier.predict_uncertainty(files, class_mix="as-trained").probabilities
    np.testing.assert_array_equal(trained, classifier.predict_proba(files))
    two = classifier.predict_uncertainty(files, class_mix={0: 1, 2: 3}).probabilities
    counts = np.bincount([numbers[name] for name in names])
    expected = trained * np.array([1, 0, 3]) / counts
    np.testing.assert_allclose(two, expected / expected.sum(1, keepdims=True), atol=1e-5)
    assert classifier.predict_uncertainty(files, class_mix="estimate").probabilities.shape == two.shape
    for mix, says in (({9: 1}, "9 is none of the classes"), ("often", "class_mix is 'often'")):
        with pytest.raises(InputError, match=says):
            classifier.predict_uncertainty(files, class_mix=mix)


def test_shots_draw_as_datasets_do(photos):
    files, labels = paths(photos, "train")
    items = tuple(Item(str(place), NAMES.index(label)) for place, label in enumerate(labels))
    chosen = [int(item.path) for item in draw(Dataset("x", Path(), NAMES, items), 2, 9).train]
    few = PromptClassifier("nearest-mean", shots=2, random_state=9).fit(files, labels)
    same = PromptClassifier("nearest-mean").fit(
        [files[row] for row in chosen], [labels[row] for row in chosen]
    )
    np.testing.assert_allclose(few.predict_proba(files), same.predict_proba(files), atol=1e-6)
    assert len(chosen) == 6


def test_new_classes_by_their_names(photos):
    train, test = paths(photos, "train"), paths(photos, "test")[0]
    classifier = PromptClassifier("pbprompt", settings=BRIEF, samples=3).fit(*train)
    before = classifier.predict_proba(test)
    assert classifier.add_classes(["sea_animal", "bird"]) is classifier
    assert classifier.classes_.tolist() == ["bird", "clock", "fruit", "mammal", "sea_animal"]
    method = classifier.method_
    assert method.classes == (*NAMES, "sea_animal", "bird")
    images = classifier.encode(test)
    encoded = Encoded(torch.from_numpy(images[:, 0]), torch.from_numpy(images[:, 1:]))
    expected = predictive(method, 3)(encoded).probabilities.numpy()
    np.testing.assert_allclose(classifier.predict_proba(test), expected[:, [4, 0, 1, 2, 3]], atol=1e-5)
    assert before.shape == (6, 3)
    for names, message in (
        ("bird", "give a list of class names"),
        ([], "give a list of class names"),
        (["Bird"], "both named"),
        ({1: "tree"}, r"the labels \[1\] are no"),
        (["bird"], "already|both named"),
        (["word " * 90], "token"),
    ):
        with pytest.raises(InputError, match=message):
            classifier.add_classes(names)
        np.testing.assert_allclose(classifier.predict_proba(test), expected[:, [4, 0, 1, 2, 3]], atol=1e-5)


def test_new_classes_where_labels_are_numbers(photos):
    files, names = paths(photos, "train")
    classifier = PromptClassifier("tip-adapter", class_names=list(NAMES))
    classifier.fit(files, [NAMES.index(name) for name in names])
    with pytest.raises(InputError, match=r"give \{label: name\}"):
        classifier.add_classes(["bird"])
    classifier.add_classes({-1: "bird"})
    assert classifier.classes_.tolist() == [-1, 0, 1, 2]
    assert [*map(read_name, classifier.method_.classes)] == [*NAMES, "bird"]
    assert classifier.predict_proba(files).shape == (9, 4)
    with pytest.raises(InputError, match="in classes_ already"):
        classifier.add_classes({0: "tree"})


def test_a_method_that_takes_no_new_classes_stays_as_it_is(photos):
    files, labels = paths(photos, "train")
    classifier = PromptClassifier("nearest-mean").fit(files, labels)
    expected = classifier.predict_proba(files)
    with pytest.raises(InputError, match="knows only the classes it has images of"):
        classifier.add_classes(["bird"])
    np.testing.assert_array_equal(classifier.predict_proba(files), expected)


def test_look_sees_by_the_classifiers_backbone(photos, tiny_vit):
    from pbprompt.apps.audit.audit import look

    found = PromptClassifier(backbone=tiny_vit).look(photos)
    assert found == look(photos, backbone=tiny_vit) and found.classes and found.images


def test_explain_looks_with_the_prompts_in_use(photos, fitted):
    from pbprompt.apps.explain.heat_maps import heat_maps

    file = paths(photos, "test")[0][0]
    maps = fitted.explain(file, ["mammal", "clock"], samples=2)
    predictor, image = predictive(fitted.method_, 4), Image.open(file).convert("RGB")
    expected = heat_maps(predictor, image, ["mammal", "clock"], 2)
    assert maps.classes == ("mammal", "clock")
    np.testing.assert_allclose(maps.prompt_to_patch, expected.prompt_to_patch, atol=1e-6)
    np.testing.assert_allclose(maps.probabilities, fitted.predict_proba([file])[0][[2, 0]], atol=1e-4)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"method": "pbpromt"}, "did you mean 'pbprompt'"),
        ({"settings": {"epoch": 3}}, "did you mean 'epochs'"),
        ({"settings": {"epochs": "many"}}, "it takes int"),
        ({"preset": "none"}, "no preset 'none'"),
        ({"backbone": "lit"}, "did you mean 'lite'"),
        ({"device": "abacus"}, "cannot be used here"),
        ({"template": "a photo"}, "one {}"),
        ({"samples": 0}, "samples is 0"),
        ({"samples": 2.5}, "give a whole number"),
        ({"random_state": None}, "random_state is None"),
        ({"shots": -1}, "shots is -1"),
        ({"shots": 2.5}, "shots is 2.5"),
        ({"class_weight": "even"}, "class_weight is 'even'"),
        ({"class_names": {"clock": "clock"}}, "none for label 'fruit'"),
    ],
)
def test_parameters_are_checked_by_fit(photos, parameters, message):
    files, labels = paths(photos, "train")
    with pytest.raises(InputError, match=message):
        PromptClassifier(**{"method": "pbprompt", "settings": BRIEF} | parameters).fit(files, labels)


def test_a_folder_has_its_own_labels(photos):
    for classifier, y in ((PromptClassifier(), ["a"]), (PromptClassifier(class_names={}), None)):
        with pytest.raises(InputError, match="leave y, class_names, sample_weight, groups and eval_set out"):
            classifier.fit(photos, y)


def test_files_that_a_folder_loses_are_told(photos, tmp_path):
    folder = shutil.copytree(photos, tmp_path / "photos")
    (folder / "train" / NAMES[0] / "empty.jpg").touch()
    with pytest.warns(UserWarning, match=r"Skipped 1 file: 1 empty \(train/.*/empty\.jpg\)") as told:
        PromptClassifier("nearest-mean").fit(folder)
    assert told[0].filename == __file__


def test_a_failed_fit_leaves_what_was_fitted(photos, fitted):
    files, labels = paths(photos, "train")
    classifier = PromptClassifier("nearest-mean").fit(files, labels)
    expected = classifier.predict_proba(files)
    with pytest.raises(InputError):
        classifier.fit(files, labels[:-1])
    np.testing.assert_array_equal(classifier.predict_proba(files), expected)


def test_classes_of_a_dataset_are_sorted_too(photos):
    """A dataset has numbers in their order, 9 before 10; `classes_` and the columns are strings in theirs."""
    files, names = paths(photos, "train")
    labels = [str(9 + NAMES.index(name)) for name in names]
    lines = [f"{file.relative_to(photos)},{label},train\n" for file, label in zip(files, labels, strict=True)]
    table = photos / "images.csv"
    table.write_text("".join(["image,label,split\n", *lines]))
    classifier = PromptClassifier("nearest-mean").fit(table)
    assert classifier.method_.classes == ("9", "10", "11")
    assert classifier.classes_.tolist() == ["10", "11", "9"]
    assert classifier.predict(files).tolist() == labels
    assert classifier.calibration_ is None


def test_partial_fit_is_a_fit_on_all(photos):
    files, labels = paths(photos, "train")
    vectors = PromptClassifier().encode(files)[:, 0]
    whole = PromptClassifier().fit(vectors, labels)
    known = np.flatnonzero(np.asarray(labels) != labels[-1])
    late = np.setdiff1d(np.arange(len(labels)), known)
    parts = PromptClassifier().partial_fit(vectors[known], np.asarray(labels)[known])
    parts.add_classes([labels[-1]])
    parts.partial_fit(vectors[late], np.asarray(labels)[late])
    assert parts.classes_.tolist() == whole.classes_.tolist()
    np.testing.assert_allclose(parts.predict_proba(vectors), whole.predict_proba(vectors), atol=2e-6)
    assert parts.calibration_.left_out == whole.calibration_.left_out == len(labels)
    np.testing.assert_allclose(
        sorted(parts.calibration_.confidence), sorted(whole.calibration_.confidence), atol=1e-5
    )


def test_the_promises_of_the_command_line():
    chance = np.random.default_rng(0)
    names = np.array([10, 20, 30])
    means = chance.normal(size=(3, 256))
    labels = np.repeat(names, 20)
    x = means[np.searchsorted(names, labels)] + chance.normal(size=(60, 256))
    classifier = PromptClassifier(class_names={10: "cat", 20: "dog", 30: "car"}).fit(x, labels)
    plain = classifier.predict_uncertainty(x)
    assert plain.unsure is plain.sets is plain.unknown is None and plain.familiarity.shape == (60,)
    new = np.concatenate([means[:1], -3 * means.sum(0, keepdims=True)])
    said = classifier.predict_uncertainty(new, reject_at=0.9, coverage=0.9, none_at=0.05)
    assert said.sets[0] == [10] and said.unsure.dtype == said.unknown.dtype == bool
    assert said.unknown.tolist() == [False, True] == (said.familiarity <= 0.05).tolist()
    threshold = classifier.calibration_.promised(0.9)[1]
    assert said.unsure.tolist() == (said.probabilities.max(1).round(6) < threshold).tolist()
    for asked in ("reject_at", "coverage", "none_at"):
        for share in (float("nan"), 0, 1.5):
            with pytest.raises(InputError, match="give a share between 0 and 1"):
                classifier.predict_uncertainty(new, **{asked: share})
    with pytest.raises(InputError, match="without validation images"):
        PromptClassifier("nearest-mean").fit(x, labels).predict_uncertainty(new, coverage=0.9)


def test_answers_that_are_groups_or_cost_least():
    chance = np.random.default_rng(0)
    means = chance.normal(size=(4, 256))
    means[1] = means[0]  # which nobody tells apart
    labels = np.repeat([10, 20, 30, 40], 30)
    x, new = means[labels // 10 - 1] + 0.5 * chance.normal(size=(2, 120, 256))
    classifier = PromptClassifier(
        class_names={10: "cat", 20: "kitten", 30: "car", 40: "bus"},
        hierarchy={10: "animal", 20: "animal", 30: "thing", 40: "thing"},
    ).fit(x, labels)
    found = [name for name, _ in classifier.predict_uncertainty(new, back_off=0.8).answer]
    assert found[:60].count("animal") > 30 and set(found[60:]) <= {30, 40}
    costs = {(10, 20): 50, ("*", "unsure"): 0.9}
    told = [name for name, _ in classifier.predict_uncertainty(new, costs=costs).answer]
    assert 20 not in told[:60] and told[60:] == found[60:]
    with pytest.raises(InputError, match="no class is called '9'"):
        classifier.predict_uncertainty(x, costs={(9, 10): 2})
    with pytest.raises(InputError, match="give one of them"):
        classifier.predict_uncertainty(x, costs=costs, back_off=0.9)
    with pytest.raises(InputError, match="no class is called '9'"):
        PromptClassifier(hierarchy={9: "animal"}).fit(x, labels)
    with pytest.raises(InputError, match="or 'nested'"):
        PromptClassifier(hierarchy="animals").fit(x, labels)


def test_the_hierarchy_of_folders_and_of_a_column(photos, tmp_path):
    files, names = paths(photos, "train")
    kinds = {name: "thing" if name in NAMES[:2] else "other" for name in NAMES}
    for file, name in zip(files, names, strict=True):
        (place := tmp_path / "nested" / kinds[name] / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    nested = PromptClassifier("nearest-mean", hierarchy="nested").fit(tmp_path / "nested")
    assert nested.classes_.tolist() == sorted(NAMES) and dict(nested.model_.info.hierarchy) == kinds
    nested.save_pretrained(tmp_path / "model")
    assert PromptClassifier.from_pretrained(tmp_path / "model").hierarchy == kinds
    rows = [f"{file},{name},{kinds[name]}" for file, name in zip(files, names, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["image,label,parent", *rows]))
    assert dict(PromptClassifier("nearest-mean").fit(tmp_path / "t.csv").model_.info.hierarchy) == kinds


def test_the_images_to_label_next_are_those_in_doubt(fitted, photos):
    files, _ = paths(photos, "test")
    p = np.sort(fitted.predict_proba(files), axis=1)
    chosen = fitted.next_images(files, 3, "margin")
    assert [one.row for one in chosen] == np.argsort(p[:, -1] - p[:, -2], kind="stable")[:3].tolist()
    assert len(fitted.next_images(files, 2)) == 2


def test_only_methods_that_learn_on_have_partial_fit():
    assert hasattr(PromptClassifier(), "partial_fit") and not hasattr(PromptClassifier("coop"), "partial_fit")


@pytest.fixture(scope="module")
def table(tiny_vit):
    """Features around three directions: eight images to train on, four to validate with."""
    random = np.random.default_rng(0)
    rows = np.tile(np.arange(2), 6)
    x = random.normal(size=(2, tiny_vit.embed_dim))[rows] + random.normal(size=(12, tiny_vit.embed_dim))
    x, y = x.astype(np.float32), np.array(["cat", "dog"])[rows]
    return (x[:8], y[:8]), (x[8:], y[8:])


def test_an_eval_set_is_what_validation_images_are(tiny_vit, table):
    train, held_out = table
    plain = PromptClassifier(backbone=tiny_vit).fit(*train)
    checked = PromptClassifier(backbone=tiny_vit).fit(*train, eval_set=held_out)
    np.testing.assert_array_equal(checked.predict_proba(train[0]), plain.predict_proba(train[0]))
    labels = torch.tensor(np.searchsorted(checked.classes_, held_out[1]))
    x = torch.from_numpy(held_out[0])
    by_them = calibrated_by(checked.model_.predictor, Features(x, x[:, None], labels))
    assert checked.calibration_ == by_them.joined(plain.calibration_)
    figures = checked.model_.info.metrics
    assert figures["split"] == "val" and figures["accuracy"] == checked.score(*held_out)
    assert checked.history_ == [
        {"step": 0, **{f"validation_{name}": figures[name] for name in ("accuracy", "nll", "ece")}}
    ]
    warm = PromptClassifier("nearest-mean", backbone=tiny_vit, calibrate=True).fit(*train, eval_set=held_out)
    assert warm.model_.info.temperature != 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: [x, y], "eval_set is no pair"),
        (lambda x, y: (x, ["bird"] * len(x)), "eval_set has the label 'bird', which y has not"),
        (lambda x, y: (x, range(len(x))), "eval_set has the label 0"),
        (lambda x, y: (x[:, None].repeat(3, 1), y), "other patches"),
    ],
)
def test_an_eval_set_is_checked(tiny_vit, table, change, message):
    train, held_out = table
    with pytest.raises(InputError, match=message):
        PromptClassifier(backbone=tiny_vit).fit(*train, eval_set=change(*held_out))


def test_the_history_is_the_log(tiny_vit, table):
    seen = []
    settings = {"epochs": 2, "batch_size": 4}
    classifier = PromptClassifier("taskres", settings=settings, backbone=tiny_vit)
    classifier.fit(*table[0], on_log=seen.append)
    assert classifier.history_ == seen
    assert [row["step"] for row in seen] == [2, 2, 4, 4]
    assert {"total", "accuracy"} <= set(seen[0]) and seen[1]["epoch"] == 0


def test_the_defaults_are_the_command_lines(photos):
    theirs = {name: option.default for name, option in inspect.signature(fit).parameters.items()}
    ours = PromptClassifier().get_params()
    for name in ("method", "preset", "variant", "activation", "device", "calibrate"):
        assert theirs[name].default == ours[name], name
    assert theirs["backbone"].default == [ours["backbone"]]
    assert ours["random_state"] == theirs["seed"].default
    assert ours["shots"] == theirs["shots"].default == 0  # all images
    assert PromptClassifier("nearest-mean").fit(photos).model_.info.shots == 0


def test_paths_folders_and_single_pictures(photos, fitted):
    files = sorted((photos / "test" / "clock").iterdir())
    expected = fitted.predict_proba(files)
    np.testing.assert_array_equal(fitted.predict_proba(photos / "test" / "clock"), expected)
    np.testing.assert_allclose(fitted.predict_proba(str(files[0])), expected[:1], atol=1e-6)
    np.testing.assert_allclose(fitted.predict_proba(Image.open(files[0])), expected[:1], atol=1e-4)
    with pytest.raises(InputError, match="does not exist"):
        fitted.predict(photos / "nowhere")


def test_nothing_of_numpy_is_in_messages_and_names(tiny_vit, table):
    (x, y), _ = table
    classifier = PromptClassifier(np.str_("nearest-mean"), backbone=tiny_vit, shots=np.int64(2)).fit(x, y)
    assert {type(name) for name in classifier.method_.classes} == {str}
    assert type(classifier.model_.info.shots) is int
    told = []
    for call in (
        lambda: PromptClassifier(backbone=tiny_vit).fit(x, np.array(["cat"] * len(x))),
        lambda: PromptClassifier(backbone=tiny_vit, class_names={"cat": "cat"}).fit(x, y),
        lambda: PromptClassifier(np.str_("nowhere"), backbone=tiny_vit).fit(x, y),
        lambda: PromptClassifier(class_weight={np.str_("bird"): 2}, backbone=tiny_vit).fit(x, y),
        lambda: classifier.add_classes(np.array([3])),
        lambda: classifier.add_classes(np.array(["cat"])),
        lambda: classifier.explain(Image.new("RGB", (40, 40)), names=np.array(["bird"])),
    ):
        with pytest.raises(InputError) as error:
            call()
        told.append(str(error.value))
    assert not [text for text in told if "np." in text or "<U" in text], told


def test_unlabelled_images_by_label_and_by_argument(tiny_vit):
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(3, tiny_vit.embed_dim, generator=generator)
    labels = np.tile([0, 1, 2], 20)
    x = (centres[labels] + 0.5 * torch.randn(60, tiny_vit.embed_dim, generator=generator)).numpy()
    y = labels.copy()
    y[9:] = -1
    fitted = [
        PromptClassifier(backbone=tiny_vit, class_names=["cat", "dog", "hen"]).fit(*given, **more)
        for given, more in (
            ((x, y), {}),
            ((x, [int(label) if label >= 0 else None for label in y]), {}),
            ((x[:9], y[:9]), {"unlabelled": x[9:]}),
        )
    ]
    first, *others = (each.predict_proba(x) for each in fitted)
    for other in others:
        np.testing.assert_allclose(first, other, rtol=1e-5, atol=1e-6)
    assert fitted[0].classes_.tolist() == [0, 1, 2] and fitted[0].method_.absorbed is not None
    two = PromptClassifier(backbone=tiny_vit, class_names={-1: "cat", 1: "dog"}).fit(
        x, np.where(labels, 1, -1)
    )
    assert two.classes_.tolist() == [-1, 1]  # as ever: beside one other label, −1 is a label

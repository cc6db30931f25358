"""Model folders, pickles and the hub: what comes back answers as what was kept."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from calibrated import calibrated_by
from model_files import put
from PIL import Image
from sklearn.base import clone
from typer.testing import CliRunner

from pbprompt import InputError, PromptClassifier
from pbprompt.apps.cli import app
from pbprompt.learners.trained import Trained
from pbprompt.model.calibration import read_calibration
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import methods
from pbprompt.vision.features.cache import Features
from pbprompt.vision.towers.backbone import Encoded

NAMES = np.array(["cat", "dog", "car"])


def brief(method: str) -> dict[str, int]:
    quick = {"synth_epochs": 1, "encoder_width": 8, "generator_width": 8} if method == "ship" else {}
    return {"epochs": 1, **quick} if issubclass(methods()[method], Trained) else quick


@pytest.fixture(scope="module")
def images(lite):
    generator = torch.Generator().manual_seed(0)
    return Encoded(
        torch.randn(6, lite.embed_dim, generator=generator),
        torch.randn(6, 4, lite.embed_dim, generator=generator),
    )


@pytest.fixture(scope="module")
def fitted(images):
    return PromptClassifier("pbprompt", settings={"epochs": 1}, samples=3, random_state=2).fit(
        images, np.tile(NAMES, 2)
    )


@pytest.mark.parametrize("method", sorted(name for name, kind in methods().items() if not kind.tunes_towers))
def test_every_method_comes_back(method, images, tmp_path):
    classifier = PromptClassifier(method, settings=brief(method), samples=2).fit(images, [5, 3, 4] * 2)
    if classifier.method_.takes_new_names:
        classifier.add_classes({1: "bird"})
    classifier.save_pretrained(tmp_path / "model")
    for again in (
        PromptClassifier.from_pretrained(tmp_path / "model"),
        pickle.loads(pickle.dumps(classifier)),
    ):
        assert again.classes_.tolist() == classifier.classes_.tolist()
        assert again.method_.classes == classifier.method_.classes
        np.testing.assert_array_equal(again.predict_proba(images), classifier.predict_proba(images))


def test_parameters_come_back(fitted, images, tmp_path):
    fitted.save_pretrained(tmp_path)
    again = PromptClassifier.from_pretrained(tmp_path)
    assert (again.method, again.samples, again.random_state, again.class_names) == ("pbprompt", 3, 2, None)
    assert again.settings["epochs"] == 1
    refitted = clone(again).fit(images, np.tile(NAMES, 2))  # the same settings make the same model
    np.testing.assert_array_equal(refitted.predict_proba(images), fitted.predict_proba(images))


@pytest.fixture
def table(tiny_vit):
    return np.random.default_rng(0).standard_normal((6, tiny_vit.embed_dim)).astype("float32")


@pytest.mark.parametrize("weight", ["balanced", {7: 2.5}, {np.int64(7): 2, 3: 0.5}], ids=str)
def test_class_weights_come_back(weight, table, tiny_vit, tmp_path):
    y, names = [7, 3, 3] * 2, {7: "cat", 3: "dog"}
    made = PromptClassifier(class_weight=weight, class_names=names, backbone=tiny_vit).fit(table, y)
    made.save_pretrained(tmp_path)
    again = PromptClassifier.from_pretrained(tmp_path, backbone=tiny_vit)
    assert again.class_weight == weight
    refitted = PromptClassifier(class_weight=again.class_weight, class_names=names, backbone=tiny_vit)
    expected = made.predict_proba(table)
    np.testing.assert_array_equal(refitted.fit(table, y).predict_proba(table), expected)


@pytest.mark.parametrize("weight", [3, "even", [1.0], [1.0, "x"]], ids=str)
def test_class_weights_that_are_none_are_told(weight, table, tiny_vit, tmp_path):
    PromptClassifier(backbone=tiny_vit).fit(table, ["cat", "dog"] * 3).save_pretrained(tmp_path)
    own = json.loads((tmp_path / "classifier.json").read_text())
    put(tmp_path, "classifier.json", json.dumps({**own, "class_weight": weight}))
    with pytest.raises(InputError, match=r"classifier\.json: not of this model"):
        PromptClassifier.from_pretrained(tmp_path, backbone=tiny_vit)
    del own["class_weight"]  # as it was saved before there was one
    put(tmp_path, "classifier.json", json.dumps(own))
    assert PromptClassifier.from_pretrained(tmp_path, backbone=tiny_vit).class_weight is None


def test_labels_and_their_names_come_back(images, tmp_path):
    for kind, y, names in (
        (bool, [True, False] * 3, {True: "cat", False: "dog"}),
        (int, [7, 3] * 3, {7: "cat", 3: "dog"}),
        (str, ["n1", "n0"] * 3, {"n1": "cat", "n0": "dog"}),
    ):
        PromptClassifier("tip-adapter", class_names=names).fit(images, y).save_pretrained(
            tmp_path, overwrite=True
        )
        again = PromptClassifier.from_pretrained(tmp_path)
        assert again.class_names == names
        assert {type(label) for label in again.predict(images).tolist()} == {kind}


def test_the_calibration_stays_with_the_model(fitted, images, tmp_path):
    held_out = Features(*images, labels=torch.tensor([0, 1, 2, 0, 1, 2]))
    calibration = calibrated_by(fitted.model_.predictor, held_out)
    model = replace(fitted.model_, calibration=calibration)
    with_it = PromptClassifier(**fitted.get_params(deep=False))._take(model, fitted._labels)
    with_it.save_pretrained(tmp_path / "a")
    assert read_calibration(tmp_path / "a") == calibration
    again = PromptClassifier.from_pretrained(tmp_path / "a")
    assert again.calibration_ == calibration
    assert pickle.loads(pickle.dumps(again)).calibration_ == calibration
    fitted.save_pretrained(tmp_path / "a", overwrite=True)  # a model without one takes the place
    assert PromptClassifier.from_pretrained(tmp_path / "a").calibration_ is None


def test_the_command_line_reads_it_and_is_read(tmp_path):
    random = np.random.default_rng(0)
    for number in range(12):
        folder = tmp_path / "photos" / NAMES[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    run = CliRunner().invoke
    words = [
        "--method",
        "pbprompt",
        "--shots",
        "2",
        "--set",
        "epochs=1",
        "--seed",
        "4",
        "--out",
        str(tmp_path / "theirs"),
    ]
    assert run(app, ["fit", str(tmp_path / "photos"), *words]).exit_code == 0
    ours = PromptClassifier("pbprompt", settings={"epochs": 1}, shots=2, random_state=4).fit(
        tmp_path / "photos"
    )
    ours.save_pretrained(tmp_path / "ours")
    theirs = PromptClassifier.from_pretrained(tmp_path / "theirs")
    photo = tmp_path / "photos" / "cat" / "0.png"
    for folder, classifier in (("theirs", theirs), ("ours", ours)):
        said = run(app, ["predict", str(photo), "--model", str(tmp_path / folder), "--json"])
        assert said.exit_code == 0
        scores = json.loads(said.stdout.splitlines()[-1])["scores"]
        expected = dict(zip(classifier.classes_, classifier.predict_proba([photo])[0], strict=True))
        assert scores == pytest.approx(expected, abs=2e-5)
    np.testing.assert_allclose(ours.predict_proba([photo]), theirs.predict_proba([photo]), atol=1e-5)
    assert ours.calibration_ == theirs.calibration_


def test_a_backbone_that_is_loaded_already(tiny_vit, tmp_path):
    vectors = np.random.default_rng(0).normal(size=(6, tiny_vit.embed_dim))
    unfitted = clone(
        PromptClassifier("pbprompt", settings={"epochs": 1, "words": "", "tokens": 2}, backbone=tiny_vit)
    )
    classifier = unfitted.fit(vectors, np.tile(NAMES, 2))
    classifier.save_pretrained(tmp_path)
    again = PromptClassifier.from_pretrained(tmp_path, backbone=tiny_vit)
    np.testing.assert_allclose(again.predict_proba(vectors), classifier.predict_proba(vectors), atol=1e-6)
    with pytest.raises(InputError, match="other weights than these"):
        PromptClassifier.from_pretrained(tmp_path, backbone="lite")


def test_a_pickle_holds_no_tower(fitted):
    unfitted = pickle.loads(pickle.dumps(PromptClassifier("coop", shots=3)))
    assert unfitted.get_params() == PromptClassifier("coop", shots=3).get_params()
    size = len(pickle.dumps(fitted))
    learned = sum(value.numel() * 4 for value in fitted.method_.state_dict().values())
    assert learned < size < learned + 20_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not of this model"),
        ('{"format": "other"}', "not of this model"),
        ('{"format": "pbprompt-classifier", "version": 1, "labels": [1, 2], "samples": 3}', "3 classes"),
        ('{"format": "pbprompt-classifier", "version": 1, "labels": [1, 2, "a"], "samples": 3}', "3 classes"),
        (
            '{"format": "pbprompt-classifier", "version": 1, "labels": [[], 2, 1], "samples": 3}',
            "not of this",
        ),
        (
            '{"format": "pbprompt-classifier", "version": 1, "labels": [3, 2, 1], "samples": 0}',
            "another format",
        ),
    ],
)
def test_a_damaged_file_is_told(fitted, tmp_path, content, message):
    fitted.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"classifier.json: does not hold what config.json names"):
        (tmp_path / "classifier.json").write_text(content)
        PromptClassifier.from_pretrained(tmp_path)
    put(tmp_path, "classifier.json", content)
    with pytest.raises(InputError, match=message) as error:
        PromptClassifier.from_pretrained(tmp_path)
    assert "classifier.json" in str(error.value)


def test_a_file_of_somebody_else_is_not_overwritten(fitted, tmp_path):
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(InputError, match=r"holds README\.md, which is of no training"):
        fitted.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"holds a README\.md that is no saved model's"):
        fitted.save_pretrained(tmp_path, overwrite=True)
    assert (tmp_path / "README.md").read_text() == "mine" and len(list(tmp_path.iterdir())) == 1


def test_where_no_folder_can_be_is_told(fitted, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file: choose a folder"):
        fitted.save_pretrained(tmp_path / "file")
    for source in (tmp_path / "file", tmp_path / "nowhere", "./nowhere", "nowhere"):
        with pytest.raises(InputError, match="no model folder and no hub id"):
            PromptClassifier.from_pretrained(source)
    with pytest.raises(InputError, match=r"config\.json is missing"):
        PromptClassifier.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="not fitted yet"):
        PromptClassifier().save_pretrained(tmp_path / "model")


class FakeHub:
    """Repositories in memory."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.calls: list[tuple[str, object]] = []

    def api(self, token=None):
        self.calls.append(("token", token))
        return self

    def create_repo(self, repo_id, *, private, exist_ok):
        if repo_id == "other/full":
            raise OSError("403 Forbidden\nmore lines")
        self.calls.append(("private", private))
        self.files.setdefault(repo_id, {})
        return f"https://hub.example/{repo_id}"

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        self.calls.append(("message", commit_message))
        self.files[repo_id] = {path.name: path.read_bytes() for path in Path(folder_path).iterdir()}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    fake = FakeHub()

    def snapshot_download(repo_id, *, allow_patterns, token):
        if repo_id not in fake.files:
            raise OSError("404 Not Found\nmore lines")
        folder = tmp_path / "snapshot"
        folder.mkdir()
        for name in allow_patterns:
            if name in fake.files[repo_id]:
                (folder / name).write_bytes(fake.files[repo_id][name])
        return str(folder)

    monkeypatch.setattr("huggingface_hub.HfApi", fake.api)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return fake


@pytest.mark.parametrize("prefix", ["", "hf-hub:"])
def test_to_the_hub_and_back(fitted, images, hub, prefix):
    address = fitted.push_to_hub("me/pets", private=True, token="t", message="First")
    assert address == "https://hub.example/me/pets"
    assert hub.calls == [("token", "t"), ("private", True), ("message", "First")]
    assert "--model pets" in hub.files["me/pets"]["README.md"].decode()
    hub.files["me/pets"]["extra.bin"] = b"never fetched"
    again = PromptClassifier.from_pretrained(f"{prefix}me/pets")
    np.testing.assert_array_equal(again.predict_proba(images), fitted.predict_proba(images))


def test_what_the_hub_refuses_is_told(fitted, hub):
    with pytest.raises(InputError, match=r"other/full: not uploaded \(403 Forbidden\)"):
        fitted.push_to_hub("other/full")
    with pytest.raises(InputError, match=r"no model of that id \(404 Not Found\)"):
        PromptClassifier.from_pretrained("me/none")


def test_the_folder_is_the_librarys(fitted, images, tmp_path, lite):
    fitted.save_pretrained(tmp_path)
    loaded = TunedModel.load(tmp_path, lite)
    method, info = loaded.method, loaded.info
    assert info.classes == ("car", "cat", "dog")
    assert info.seed == 2
    for name, value in method.state_dict().items():
        torch.testing.assert_close(value, fitted.method_.state_dict()[name])


def test_a_model_is_replaced_only_if_asked_to(fitted, images, tmp_path):
    fitted.save_pretrained(tmp_path)
    other = PromptClassifier("nearest-mean").fit(images, np.tile(NAMES, 2))
    with pytest.raises(InputError, match=r"holds a finished model: .*overwrite=True"):
        other.save_pretrained(tmp_path)
    assert PromptClassifier.from_pretrained(tmp_path).method == "pbprompt"
    other.save_pretrained(tmp_path, overwrite=True)
    assert PromptClassifier.from_pretrained(tmp_path).method == "nearest-mean"


def test_the_log_beside_a_model_is_its_history(fitted, tmp_path):
    fitted.save_pretrained(tmp_path)
    assert PromptClassifier.from_pretrained(tmp_path).history_ == []
    assert pickle.loads(pickle.dumps(fitted)).history_ == fitted.history_ != []
    (tmp_path / "log.jsonl").write_text('{"step": 1, "total": 0.5}\n{"step": 2, "tot')
    assert PromptClassifier.from_pretrained(tmp_path).history_ == [{"step": 1, "total": 0.5}]

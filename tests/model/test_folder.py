"""A model on disk: the same logits after a round trip, and plain words where it cannot be used."""

import contextlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from model_files import put
from safetensors.torch import load, save

from pbprompt import __version__
from pbprompt.errors import InputError
from pbprompt.learners.method import build_method, make_config
from pbprompt.model import manifest
from pbprompt.model.calibration import Calibration
from pbprompt.model.card import Provenance
from pbprompt.model.folder import describe_model, read_info
from pbprompt.model.predictor import predictive
from pbprompt.model.tuned import TunedModel
from pbprompt.prompts.pbprompt.model import PBPrompt
from pbprompt.vision.towers.backbone import Encoded, random_backbone

CLASSES = ("cat", "crème brûlée", "road vehicle")


def made(backbone, *arguments):
    method = build_method(PBPrompt, make_config(PBPrompt, *arguments), backbone, seed=3)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    method.prepare(CLASSES, "a drawing of a {}.")
    return method


def saved(folder, method):
    metrics = dict.fromkeys(("accuracy", "nll", "ece"), 0.5)
    metrics = {**metrics, "zero_shot": {**metrics, "accuracy": 0.25}}
    info = describe_model(method, seed=3, shots=4, data=Provenance(dataset="toys", draw_hash="d"))
    info = replace(info, metrics=metrics)
    TunedModel(method, info).save(folder, name="toys")
    return info


@pytest.fixture
def folder(tmp_path, tiny_vit):
    saved(tmp_path / "model", made(tiny_vit))
    return tmp_path / "model"


@pytest.mark.parametrize("preset", ["default", "paper"])
@pytest.mark.parametrize("variant", ["", "b-prompt", "p-prompt", "without-sampling", "ot"])
def test_the_same_logits_bit_for_bit(tmp_path, tiny_vit, preset, variant):
    method = made(tiny_vit, preset, variant)
    info = saved(tmp_path, method)
    loaded = TunedModel.load(tmp_path, tiny_vit)
    again, read = loaded.method, loaded.info
    assert read == info and again.config == method.config
    assert (again.classes, again.template) == (method.classes, method.template)
    images = Encoded(torch.randn(5, 32), torch.randn(5, 2, 32))
    one, other = (predictive(m, samples=4, seed=1) for m in (method, again))
    assert torch.equal(one.bank, other.bank)
    assert torch.equal(method.sample_logits(images, one.bank), again.sample_logits(images, other.bank))
    assert torch.equal(one(images).probabilities, other(images).probabilities)


def test_what_the_folder_holds(folder, tiny_vit):
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["format"] == "pbprompt-model" and config["version"] == 2
    assert list(config["files"]) == ["model.safetensors"]
    assert config["method"] == "pbprompt" and config["classes"] == list(CLASSES)
    assert "crème" in (folder / "config.json").read_text(encoding="utf-8")
    assert config["backbone"] == {
        "name": "tiny-vit",
        "activation": "quick_gelu",
        "fingerprint": "random-tiny-vit-0",
    }
    assert (config["seed"], config["shots"], config["library"]) == (3, 4, __version__)
    assert config["data"]["draw_hash"] == "d" and config["metrics"]["zero_shot"]["accuracy"] == 0.25
    tensors = load((folder / "model.safetensors").read_bytes())
    assert set(tensors) == {name for name, _ in made(tiny_vit).named_parameters()}  # no towers
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
    assert "--model toys" in (folder / "README.md").read_text(encoding="utf-8")


@contextlib.contextmanager
def killed_after(monkeypatch, renames):
    """The process ends when so many files have got their names."""
    rename, done = Path.replace, []

    def replace_or_die(self, target):
        if len(done) == renames:
            raise KeyboardInterrupt
        done.append(target)
        return rename(self, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", replace_or_die)
        yield


CALIBRATED = Calibration(
    (0.9,), (True,), (0.9,), classes=3, classes_seen=1, samples=20, seed=0, labels=("cat",)
)
ALL = 6  # two staged files, the config, the two files, the card


def another(backbone):
    method = made(backbone, "paper")
    method.prepare(("dog", "bird", "fish"), "a photo of a {}.")
    return method


@pytest.mark.parametrize("renames", range(ALL + 1))
def test_a_kill_while_a_model_is_replaced_leaves_one_of_the_two(folder, tiny_vit, monkeypatch, renames):
    """Whole: the former until the config has its name, the new one from then on."""
    old, new = TunedModel.load(folder, tiny_vit).method, another(tiny_vit)
    with killed_after(monkeypatch, renames) if renames < ALL else contextlib.nullcontext():
        TunedModel(new, describe_model(new), CALIBRATED).save(folder)
    is_new = renames > 2
    found = TunedModel.load(folder, tiny_vit)
    assert found.classes == (new if is_new else old).classes
    assert found.calibration == (CALIBRATED if is_new else None)
    wanted = (new if is_new else old).state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in found.method.state_dict().items())
    saved(folder, old)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert TunedModel.load(folder, tiny_vit).method.classes == old.classes


def test_a_model_that_is_replaced_while_it_is_read_is_one_of_the_two(folder, tiny_vit, monkeypatch):
    new, content, reads = another(tiny_vit), manifest._content, []

    def read_then_replaced(path):
        found = content(path)
        reads.append(path.name)
        if len(reads) == 1:  # the config
            TunedModel(new, describe_model(new), CALIBRATED).save(folder)
        return found

    monkeypatch.setattr(manifest, "_content", read_then_replaced)
    found = TunedModel.load(folder, tiny_vit)
    assert found.classes == new.classes and found.calibration == CALIBRATED
    wanted = new.state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in found.method.state_dict().items())


def test_all_that_a_kill_can_leave_is_known_to_the_next_save(folder, tiny_vit, monkeypatch):
    """Files that are being written have names that it looks for."""
    fsync, seen = os.fsync, set()

    def looking(handle):
        seen.update(path.name for path in folder.iterdir())
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", looking)
        saved(folder, another(tiny_vit))
    kept = {path.name for path in folder.iterdir()}
    assert len(seen - kept) >= 4
    for name in seen - kept:
        (folder / name).write_bytes(b"left by a kill")
    saved(folder, another(tiny_vit))
    assert {path.name for path in folder.iterdir()} == kept


def test_an_interrupt_right_after_the_config_keeps_what_it_names(folder, tiny_vit, monkeypatch):
    new, write = another(tiny_vit), manifest.write_files

    def interrupted(where, contents):
        write(where, contents)
        if "config.json" in contents:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(manifest, "write_files", interrupted)
        TunedModel(new, describe_model(new)).save(folder)
    assert TunedModel.load(folder, tiny_vit).method.classes == new.classes


@pytest.mark.parametrize("name", ["README.md", "config.json", "model.safetensors", "classifier.json"])
def test_files_of_others_are_not_saved_over(tmp_path, tiny_vit, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match=f"holds a {name} that is no saved model's"):
        saved(tmp_path, made(tiny_vit))
    assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "mine"


def test_weights_that_are_no_numbers_are_refused(folder, tiny_vit):
    tensors = load((folder / "model.safetensors").read_bytes())
    tensors["generator.words"][0, 0] = torch.nan
    put(folder, "model.safetensors", save(tensors))
    with pytest.raises(InputError, match=r"model.safetensors: generator.words holds NaN or infinite values"):
        TunedModel.load(folder, tiny_vit)


def test_a_half_written_folder_is_no_model(tmp_path, tiny_vit, monkeypatch):
    with killed_after(monkeypatch, 1):
        saved(tmp_path, made(tiny_vit))
    with pytest.raises(InputError, match="no model here"):
        TunedModel.load(tmp_path, tiny_vit)


def test_another_backbone_is_refused(folder, tiny_vit, tiny_resnet):
    for backbone in (random_backbone(tiny_vit.config, seed=1), tiny_resnet):
        with pytest.raises(InputError, match=r"tuned on tiny-vit with other weights .* give the same"):
            TunedModel.load(folder, backbone)


def test_missing_folders_and_files(tmp_path, folder, tiny_vit):
    with pytest.raises(InputError, match=r"nowhere: no model here .* give a folder that `fit` wrote"):
        TunedModel.load(tmp_path / "nowhere", tiny_vit)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model.safetensors: missing, but config.json names it"):
        TunedModel.load(folder, tiny_vit)


@pytest.mark.parametrize("hashed", [True, False])
def test_damaged_weights(folder, tiny_vit, hashed):
    path = folder / "model.safetensors"
    good = path.read_bytes()

    def write(content):
        put(folder, path.name, content) if hashed else path.write_bytes(content)

    tensors = load(good)
    for content in (b"", good[:100], good[:-1], b"\0" * 64):
        write(content)
        with pytest.raises(InputError, match=r"model.safetensors: does not hold") as error:
            TunedModel.load(folder, tiny_vit)
        assert "\n" not in str(error.value)
    fewer = {key: value for key, value in tensors.items() if key != "generator.words"}
    wider = tensors | {"generator.words": torch.zeros(5, 64)}
    for wrong in (fewer, wider, tensors | {"more": torch.zeros(1)}):
        write(save(wrong))
        with pytest.raises(InputError, match=r"model.safetensors: does not hold") as error:
            TunedModel.load(folder, tiny_vit)
        assert "\n" not in str(error.value)


def changed(folder, **values):
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | values
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "drop"}))


@pytest.mark.parametrize(
    "values",
    [
        {"format": "drop"},
        {"format": "something-else"},
        {"version": 3},
        {"version": 1},
        {"classes": "drop"},
        {"classes": None},
        {"method": "drop"},
        {"surprise": 1},
        {"backbone": {"name": "tiny-vit"}},
        {"backbone": None},
        {"backbone": {"name": 1, "activation": "gelu", "fingerprint": "f"}},
        {"method": ["pbprompt"]},
        {"config": [1]},
        {"classes": "cat"},
        {"classes": ["cat", 2]},
        {"template": 5},
        {"seed": "3"},
        {"shots": None},
        {"data": 1},
        {"metrics": "good"},
    ],
)
def test_damaged_configs(folder, tiny_vit, values):
    changed(folder, **values)
    with pytest.raises(InputError, match=r"config.json: not a model of pbprompt .* fit it again"):
        TunedModel.load(folder, tiny_vit)


def test_class_names_that_were_changed_are_refused(folder, tiny_vit):
    names = list(read_info(folder).classes)
    for other in ([names[0], *names[:-1]], [*names[:-1], "other"], names[::-1], names[:-1]):
        changed(folder, classes=other)
        with pytest.raises(InputError, match=r"config.json: .* class names are not those .*: fit it again"):
            TunedModel.load(folder, tiny_vit)
    changed(folder, classes=names)
    TunedModel.load(folder, tiny_vit)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 9999])
def test_configs_that_are_no_json(folder, content):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=r"config.json") as error:
        read_info(folder)
    assert "\n" not in str(error.value)


def test_an_unknown_method_or_setting_is_named(folder, tiny_vit):
    config = read_info(folder).config
    changed(folder, config=config | {"ct_wait": 1})
    with pytest.raises(InputError, match=r"config.json: unknown setting 'ct_wait': did you mean 'ct_weight'"):
        TunedModel.load(folder, tiny_vit)
    changed(folder, method="pbpromt")
    with pytest.raises(InputError, match="did you mean 'pbprompt'"):
        TunedModel.load(folder, tiny_vit)


def test_loading_leaves_the_global_generator_to_the_caller(folder, tiny_vit):
    TunedModel.load(folder, tiny_vit)
    before = torch.get_rng_state()
    TunedModel.load(folder, tiny_vit)
    assert torch.equal(torch.get_rng_state(), before)

"""A model on disk: the same logits after a round trip, and plain words where it cannot be used."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load, save_file

from pbprompt import __version__
from pbprompt.clip.backbone import Encoded, random_backbone
from pbprompt.errors import InputError
from pbprompt.methods.base import build_method, make_config
from pbprompt.methods.pbprompt import PBPrompt
from pbprompt.model.folder import describe_model, load_model, read_info, save_model
from pbprompt.model.predictor import predictive

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
    info = describe_model(method, seed=3, shots=4, data={"dataset": "toys", "draw_hash": "d"})
    info = replace(info, metrics=metrics)
    save_model(folder, method, info, name="toys")
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
    again, read = load_model(tmp_path, tiny_vit)
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
    assert config["format"] == "pbprompt-model" and config["version"] == 1
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


def test_a_half_written_folder_is_no_model(tmp_path, tiny_vit, monkeypatch):
    """The config comes last."""
    from pbprompt.model import folder as model_folder

    write = model_folder.write_text

    def dies_at_config(path, text):
        if path.name == "config.json":
            raise KeyboardInterrupt
        write(path, text)

    monkeypatch.setattr(model_folder, "write_text", dies_at_config)
    with pytest.raises(KeyboardInterrupt):
        saved(tmp_path, made(tiny_vit))
    assert (tmp_path / "model.safetensors").exists()
    with pytest.raises(InputError, match="no model here"):
        load_model(tmp_path, tiny_vit)


def test_another_backbone_is_refused(folder, tiny_vit, tiny_resnet):
    for backbone in (random_backbone(tiny_vit.config, seed=1), tiny_resnet):
        with pytest.raises(InputError, match=r"tuned on tiny-vit with other weights .* give the same"):
            load_model(folder, backbone)


def test_missing_folders_and_files(tmp_path, folder, tiny_vit):
    with pytest.raises(InputError, match=r"nowhere: no model here .* give a folder that `fit` wrote"):
        load_model(tmp_path / "nowhere", tiny_vit)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model.safetensors: does not hold .* fit it again"):
        load_model(folder, tiny_vit)


def test_damaged_weights(folder, tiny_vit):
    path = folder / "model.safetensors"
    good = path.read_bytes()
    tensors = load(good)
    for content in (b"", good[:100], good[:-1], b"\0" * 64):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"model.safetensors: does not hold") as error:
            load_model(folder, tiny_vit)
        assert "\n" not in str(error.value)
    fewer = {key: value for key, value in tensors.items() if key != "generator.words"}
    wider = tensors | {"generator.words": torch.zeros(5, 64)}
    for wrong in (fewer, wider, tensors | {"more": torch.zeros(1)}):
        save_file(wrong, path)
        with pytest.raises(InputError, match=r"model.safetensors: does not hold") as error:
            load_model(folder, tiny_vit)
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
        {"version": 2},
        {"classes": "drop"},
        {"classes": None},
        {"method": "drop"},
        {"surprise": 1},
        {"backbone": {"name": "tiny-vit"}},
        {"backbone": None},
    ],
)
def test_damaged_configs(folder, tiny_vit, values):
    changed(folder, **values)
    with pytest.raises(InputError, match=r"config.json: not a model of pbprompt .* fit it again"):
        load_model(folder, tiny_vit)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe"])
def test_configs_that_are_no_json(folder, content):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=r"config.json") as error:
        read_info(folder)
    assert "\n" not in str(error.value)


def test_an_unknown_method_or_setting_is_named(folder, tiny_vit):
    config = read_info(folder).config
    changed(folder, config=config | {"ct_wait": 1})
    with pytest.raises(InputError, match=r"config.json: unknown setting 'ct_wait': did you mean 'ct_weight'"):
        load_model(folder, tiny_vit)
    changed(folder, method="pbpromt")
    with pytest.raises(InputError, match="did you mean 'pbprompt'"):
        load_model(folder, tiny_vit)


def test_loading_leaves_the_global_generator_to_the_caller(folder, tiny_vit):
    load_model(folder, tiny_vit)
    before = torch.get_rng_state()
    load_model(folder, tiny_vit)
    assert torch.equal(torch.get_rng_state(), before)

"""Names, suggestions, the hub's cache and being offline, all without a network."""

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from safetensors.torch import save_file

from pbprompt.errors import InputError
from pbprompt.vision.towers.backbone import BackboneConfig, random_backbone
from pbprompt.vision.towers.loading import hub
from pbprompt.vision.towers.loading.hub import OPENAI_MODELS, find_weights
from pbprompt.vision.towers.loading.load import load_backbone
from pbprompt.vision.towers.text import TextConfig
from pbprompt.vision.towers.vit import VitConfig


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and hub cache, and no network."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def write_open_clip(folder: Path, quick_gelu: bool) -> None:
    folder.mkdir(parents=True)
    config = BackboneConfig("tiny", 32, VitConfig(16, 8, 64, 1, 1), TextConfig(16, 600, 64, 1, 1))
    state = {k.removeprefix("textual."): v for k, v in random_backbone(config).state_dict().items()}
    save_file(state | {"logit_scale": torch.tensor(4.0)}, folder / "open_clip_model.safetensors")
    model = {
        "embed_dim": 32,
        "quick_gelu": quick_gelu,
        "vision_cfg": {"image_size": 16, "layers": 1, "width": 64, "patch_size": 8},
        "text_cfg": {"context_length": 16, "vocab_size": 600, "width": 64, "heads": 1, "layers": 1},
    }
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": model}))


def put_into_cache(home: Path, repository: str, quick_gelu: bool = True) -> None:
    """The hub's cache as huggingface_hub lays it out."""
    folder = home / "hub" / f"models--{repository.replace('/', '--')}"
    write_open_clip(folder / "snapshots" / ("0" * 40), quick_gelu)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)


@pytest.mark.parametrize("name", OPENAI_MODELS)
def test_offline_with_nothing_cached(home: Path, name: str) -> None:
    with pytest.raises(InputError) as caught:
        load_backbone(name)
    assert str(caught.value).startswith(OPENAI_MODELS[name])
    assert "not in the cache and the Hugging Face hub cannot be reached" in str(caught.value)


@pytest.mark.parametrize("name", ["hf-hub:org/model", "org/model"])
def test_offline_from_the_cache(home: Path, name: str) -> None:
    put_into_cache(home, "org/model", quick_gelu=False)
    backbone = load_backbone(name)
    assert (backbone.config.name, backbone.config.activation) == (name, "gelu")


def test_openai_names_are_quick_gelu_whatever_the_config_leaves_out(home: Path) -> None:
    put_into_cache(home, OPENAI_MODELS["RN50"], quick_gelu=False)
    assert load_backbone("RN50").config.activation == "quick_gelu"
    with pytest.raises(InputError, match="the model uses quick_gelu"):
        load_backbone("RN50", activation="gelu")


def test_openais_own_cache_comes_first(home: Path) -> None:
    put_into_cache(home, OPENAI_MODELS["ViT-B/16"])
    (home / ".cache" / "clip").mkdir(parents=True)
    own = home / ".cache" / "clip" / "ViT-B-16.pt"
    own.touch()
    assert find_weights("ViT-B/16") == own
    own.unlink()
    assert find_weights("ViT-B/16").name == "open_clip_model.safetensors"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("RN5", "did you mean 'RN50'"),
        ("vit-b/16", "did you mean 'ViT-B/16'"),
        ("ViT-B-16", "did you mean 'ViT-B/16'"),
        ("ViT-B/33", "did you mean 'ViT-B/32'"),
        ("Lite", "did you mean 'lite'"),
        ("nonsense", "known are lite, lite-vit, RN50"),
        ("models/missing.pt", "no such file or folder"),
        ("./missing", "no such file or folder"),
        ("a/b/c", "known are"),
        ("", "known are"),
    ],
)
def test_unknown_names(home: Path, name: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    with pytest.raises(InputError) as caught:
        load_backbone(name)
    assert hint in str(caught.value) and "\n" not in str(caught.value)


def test_an_impossible_id(home: Path) -> None:
    with pytest.raises(InputError, match="check the id"):
        load_backbone("hf-hub:a/b/c")


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's name resolves, whatever this machine reaches."""
    monkeypatch.setattr(hub, "_hub_resolves", lambda: True)


@pytest.mark.usefixtures("connected")
def test_download_order_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Hugging Face repository without safetensors: every file is asked for once."""
    asked = []
    present = {"config.json", "pytorch_model.bin", "preprocessor_config.json"}
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')

    def download(repository: str, file: str, **_: object) -> str:
        asked.append(file)
        if file not in present:
            raise EntryNotFoundError("404")
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert find_weights("hf-hub:org/model") == tmp_path / "pytorch_model.bin"
    assert asked == [
        "open_clip_config.json",
        "config.json",
        "model.safetensors",
        "pytorch_model.bin",
        "preprocessor_config.json",
        "processor_config.json",
    ]
    asked.clear()
    (tmp_path / "config.json").write_text('{"model_type": "siglip"}')
    find_weights("hf-hub:org/model")
    assert asked[-2:] == ["tokenizer.json", "tokenizer_config.json"]
    asked.clear()
    present |= {"open_clip_config.json", "open_clip_model.safetensors"}
    (tmp_path / "open_clip_config.json").write_text('{"model_cfg": {"text_cfg": {"hf_tokenizer_name": "a"}}}')
    find_weights("hf-hub:org/model")
    assert asked[-2:] == ["tokenizer.json", "tokenizer_config.json"]
    present.clear()
    with pytest.raises(InputError, match="hf-hub:org/model: holds no weights that can be loaded"):
        find_weights("hf-hub:org/model")
    present.add("PE-Core-B16-224.pt")
    assert find_weights("facebook/PE-Core-B16-224") == tmp_path / "PE-Core-B16-224.pt"


@pytest.mark.usefixtures("connected")
def test_connection_lost_asks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a connection only the first file waits for the network."""
    modes = []

    def download(repository: str, file: str, local_files_only: bool) -> str:
        modes.append(local_files_only)
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(InputError, match="cannot be reached"):
        find_weights("hf-hub:org/model")
    assert modes[0] is False and all(modes[1:])


def test_without_a_name_server_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline is known at once: only the cache is looked at."""
    modes = []

    def download(repository: str, file: str, local_files_only: bool) -> str:
        modes.append(local_files_only)
        raise LocalEntryNotFoundError("not cached")

    def unresolved(*_: object) -> None:
        raise OSError("no name server")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(hub, "getproxies", dict)
    monkeypatch.setattr(hub.socket, "getaddrinfo", unresolved)
    with pytest.raises(InputError, match="cannot be reached"):
        find_weights("hf-hub:org/model")
    assert modes and all(modes)


@pytest.mark.usefixtures("connected")
def test_interrupted_download(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, **__: object) -> str:
        raise OSError("Connection reset\nby peer")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(InputError, match=r"the download failed \(Connection reset\); run the command again"):
        find_weights("hf-hub:org/model")


def test_a_folder_with_a_known_name_needs_a_path(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    write_open_clip(home / "RN50", quick_gelu=True)
    with pytest.raises(InputError, match="cannot be reached"):
        load_backbone("RN50")
    assert load_backbone("./RN50").embed_dim == 32
    shutil.rmtree(home / "RN50")

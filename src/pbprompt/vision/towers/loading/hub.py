"""Where weights come from: known names and families, folders, and the Hugging Face hub with its cache."""

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

import yaml

from pbprompt.errors import InputError, first_line, nearest, suggest
from pbprompt.vision.towers import ASSETS
from pbprompt.vision.towers.loading.files import (
    HF_CONFIG,
    HF_PREPROCESSOR,
    HF_PROCESSOR,
    HF_TOKENIZER,
    HF_TOKENIZER_CONFIG,
    INDEX,
    OPEN_CLIP_CONFIG,
    read_json,
    shard_files,
)

EMBEDDED = ("lite", "lite-vit")  # in the package
# OpenAI's models: the Hugging Face hub has the ViTs from OpenAI itself, the ResNets in open_clip's format.
OPENAI_MODELS = {
    "RN50": "timm/resnet50_clip.openai",
    "RN101": "timm/resnet101_clip.openai",
    "RN50x4": "timm/resnet50x4_clip.openai",
    "RN50x16": "timm/resnet50x16_clip.openai",
    "RN50x64": "timm/resnet50x64_clip.openai",
    "ViT-B/32": "openai/clip-vit-base-patch32",
    "ViT-B/16": "openai/clip-vit-base-patch16",
    "ViT-L/14": "openai/clip-vit-large-patch14",
    "ViT-L/14@336px": "openai/clip-vit-large-patch14-336",
}
HUB_PREFIX = "hf-hub:"
HUB_ID = r"[\w.-]+/[\w.-]+"
WEIGHT_SUFFIXES = {".pt", ".pth", ".bin", ".ckpt", ".safetensors"}
LAYOUTS = (
    (OPEN_CLIP_CONFIG, ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")),
    (HF_CONFIG, ("model.safetensors", "pytorch_model.bin")),
)

OWN_IDS = {"lite": EMBEDDED, "OpenAI CLIP": tuple(OPENAI_MODELS)}
MODULES = {"siglip": "tokenizers", "timm": "timm"}  # extra -> what it brings
Fetch = Callable[[str], Path | None]


@dataclass(frozen=True)
class Family:
    """A row of `assets/families.yaml`, which says what the fields hold."""

    name: str
    licence: str
    pixels: str
    parameters: str
    ids: tuple[str, ...]
    extra: str | None = None

    @property
    def missing(self) -> str | None:
        """The extra that is not installed here, if one is needed."""
        return self.extra if self.extra and find_spec(MODULES[self.extra]) is None else None


@cache
def families() -> tuple[Family, ...]:
    """All of them, in the order they are listed in."""
    rows = yaml.safe_load((ASSETS / "families.yaml").read_text(encoding="utf-8"))
    return tuple(Family(**{**row, "ids": OWN_IDS.get(row["name"]) or tuple(row["ids"])}) for row in rows)


def find_weights(name: str) -> Path:
    """The file of weights behind a name, a path or a hub id; its companions lie beside it."""
    if name in OPENAI_MODELS:
        cached = _openai_file(name)
        return cached if cached.is_file() else _from_hub(OPENAI_MODELS[name])
    if name.startswith(HUB_PREFIX):
        return _from_hub(name.removeprefix(HUB_PREFIX))
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if name and path.is_dir():
        return _choose(str(path), lambda file: path / file if (path / file).is_file() else None)
    if path.suffix.lower() in WEIGHT_SUFFIXES or name.startswith((".", "/", "~")):
        raise InputError(
            f"{name}: no such file or folder; give the path of a checkpoint, or a name such as lite"
        )
    known = (*EMBEDDED, *OPENAI_MODELS)
    if not nearest(name, known, cutoff=0.7) and re.fullmatch(HUB_ID, name):
        return _from_hub(name)
    hint = suggest(name, known)
    raise InputError(
        f"unknown backbone {name!r}: {hint} (a file, a folder and a hub id ORG/NAME or timm/NAME also work)"
    )


def in_cache(name: str) -> bool:
    """Whether a known name's or a hub id's weights are on this machine, so that no network is needed."""
    from huggingface_hub import try_to_load_from_cache

    if name in EMBEDDED or (name in OPENAI_MODELS and _openai_file(name).is_file()):
        return True
    repository = OPENAI_MODELS.get(name, name)
    if not re.fullmatch(HUB_ID, repository):
        return False
    usual = [file for _, weights in LAYOUTS for file in weights]
    files = [*usual, *(f"{file}{INDEX}" for file in usual), _own_file(repository)]
    return any(isinstance(try_to_load_from_cache(repository, file), str) for file in files)


def _openai_file(name: str) -> Path:
    """Where OpenAI's package puts a model."""
    return Path("~/.cache/clip").expanduser() / f"{name.replace('/', '-')}.pt"


def _choose(source: str, fetch: Fetch, own: str | None = None) -> Path:
    """The first of the usual files that a folder or a hub repository has, else its `own`."""
    for config, weights in LAYOUTS:
        if (described := fetch(config)) is None:
            continue
        for file in (*weights, *(f"{file}{INDEX}" for file in weights)):
            if (found := fetch(file)) is not None:
                for shard in shard_files(found) if file.endswith(INDEX) else ():
                    if fetch(shard) is None:
                        raise InputError(f"{source}: lacks {shard}, which {file} lists; fetch it too")
                for companion in _companions(described):  # brings them beside the weights
                    fetch(companion)
                return found
    if own is not None and (found := fetch(own)) is not None:
        return found
    expected = " or ".join(f"{config} with {' or '.join(weights)}" for config, weights in LAYOUTS)
    raise InputError(f"{source}: holds no weights that can be loaded; expected {expected}")


def _own_file(repository: str) -> str:
    """Meta's repositories of PE-Core hold one file of the repository's name."""
    return f"{repository.split('/')[-1]}.pt"


def _companions(described: Path) -> tuple[str, ...]:
    """The files beside the weights that a model's config asks for; CLIP's vocabulary is in the package."""
    config = read_json(described)
    tokenizer = (HF_TOKENIZER, HF_TOKENIZER_CONFIG)
    if described.name == HF_CONFIG:
        own = config.get("model_type") in ("siglip", "metaclip_2")
        return (HF_PREPROCESSOR, HF_PROCESSOR, *(tokenizer if own else ()))
    text = (config.get("model_cfg") or {}).get("text_cfg") or {}
    return tokenizer if text.get("hf_tokenizer_name") else ()


def _hub_resolves() -> bool:
    """Whether the hub's name resolves: without a network, that answers at once instead of after retries."""
    from huggingface_hub import constants

    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
    except OSError:
        return False
    return True


def _from_hub(repository: str) -> Path:
    # imported here: it takes a while, and local files need none of it
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    offline = not _hub_resolves()

    def fetch(file: str) -> Path | None:
        nonlocal offline
        try:
            return Path(hf_hub_download(repository, file, local_files_only=offline))
        except LocalEntryNotFoundError:  # no connection, and not in the cache: look there alone from now on
            offline = True
            return None
        except EntryNotFoundError:
            return None

    try:
        return _choose(f"{HUB_PREFIX}{repository}", fetch, _own_file(repository))
    except GatedRepoError:
        raise InputError(
            f"{repository}: only for users the owner accepted; run `hf auth login` with such an account"
        ) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise InputError(
            f"{repository}: the Hugging Face hub has no such public model; check the id"
        ) from None
    except InputError:
        if not offline:
            raise
    except Exception as error:  # the network's libraries have errors of many families
        raise InputError(
            f"{repository}: the download failed ({first_line(error)}); run the command again to resume it"
        ) from None
    raise InputError(
        f"{repository}: not in the cache and the Hugging Face hub cannot be reached; "
        "connect once to download it, or give the path of a local checkpoint"
    )

"""MobileCLIP: an image tower that timm builds beside CLIP's text tower, which may see every position."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fake_timm import TEXT, fake_timm, random_trunk, write_mobileclip
from safetensors.torch import load_file, save_file
from torch import nn

from pbprompt.errors import InputError
from pbprompt.registry import find_method
from pbprompt.testing.fits import prepared, random_images, train_recorded
from pbprompt.vision.towers.engine import TextEngine, encode_texts
from pbprompt.vision.towers.loading.load import load_backbone
from pbprompt.vision.towers.prompts import named_prompts

TEXTS = ["a cat", "a photo of a golden retriever.", "x"]


@pytest.fixture(autouse=True)
def timm(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", fake_timm())


@pytest.fixture
def mobileclip(tmp_path):
    return load_backbone(write_mobileclip(tmp_path))


@pytest.mark.parametrize("name", ["tiny_conv", "tiny_vit"])
def test_images_are_timms(name, tmp_path):
    ours = load_backbone(write_mobileclip(tmp_path, name))
    trunk, x = random_trunk(name, 32), torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        seen = ours.image(x)
        assert torch.allclose(seen.global_, trunk(x), atol=1e-5)
    assert seen.patches.shape == (2, 16, 32) and ours.grid == (4, 4)
    if name == "tiny_conv":  # the head is linear and the pool a mean
        assert torch.allclose(seen.patches.mean(1), seen.global_, atol=1e-5)
    see = ours.preprocess
    assert (see.size, see.fit, see.interpolation, see.mean) == (32, "crop", "bilinear", (0.0, 0.0, 0.0))
    assert ours.logit_scale == pytest.approx(2.718281828**2) and not list(ours.parameters())


def plainly(state: dict[str, torch.Tensor], ids: torch.Tensor, causal: bool) -> torch.Tensor:
    """The text tower by torch's own layers; EOT is the largest id."""
    length = TEXT["context_length"]
    x = state["token_embedding.weight"][ids] + state["positional_embedding"]
    mask = torch.full((length, length), -torch.inf).triu(1) if causal else None
    for layer in range(TEXT["layers"]):
        own = f"transformer.resblocks.{layer}."
        block = nn.TransformerEncoderLayer(
            TEXT["width"],
            TEXT["heads"],
            4 * TEXT["width"],
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        names = {
            **{f"self_attn.{part}": f"attn.{part}" for part in ("in_proj_weight", "in_proj_bias")},
            **{f"self_attn.out_proj.{part}": f"attn.out_proj.{part}" for part in ("weight", "bias")},
            **{f"linear1.{part}": f"mlp.c_fc.{part}" for part in ("weight", "bias")},
            **{f"linear2.{part}": f"mlp.c_proj.{part}" for part in ("weight", "bias")},
            **{f"norm{n}.{part}": f"ln_{n}.{part}" for n in (1, 2) for part in ("weight", "bias")},
        }
        block.load_state_dict({theirs: state[own + ours] for theirs, ours in names.items()})
        x = block(x, src_mask=mask)
    x = nn.functional.layer_norm(x, x.shape[-1:], state["ln_final.weight"], state["ln_final.bias"])
    return x[torch.arange(len(x)), ids.argmax(1)] @ state["text_projection"]


@pytest.mark.parametrize("causal", [True, False])
def test_texts_are_read_at_their_end_with_all_that_is_seen(causal, tmp_path):
    ours = load_backbone(write_mobileclip(tmp_path, causal=causal))
    state = load_file(tmp_path / "open_clip_model.safetensors")
    text = {key.removeprefix("text."): value for key, value in state.items() if key.startswith("text.")}
    ids, lengths = ours.tokenizer(TEXTS)
    with torch.no_grad():
        wanted = plainly(text, ids, causal)
        found = encode_texts(ours, TEXTS)
        by_hand = ours.text(ours.token_embedding(ids), lengths)
    assert torch.allclose(found, wanted, atol=1e-4) and torch.allclose(by_hand, wanted, atol=1e-4)


@pytest.mark.parametrize("budget", [1 << 30, 1])
def test_the_engine_gives_the_plain_gradients(mobileclip, budget):
    prompts = named_prompts(mobileclip.tokenizer, ["cat", "golden retriever"], 2)
    engine = TextEngine(mobileclip, prompts, memory_budget=budget)
    context = torch.randn(2, 64, generator=torch.Generator().manual_seed(3)).requires_grad_()
    features = engine(context)
    (fast,) = torch.autograd.grad(features.square().sum(), context)
    rows = []
    for prompt in prompts:
        ids = torch.tensor(prompt).clamp(min=0)
        embedded = mobileclip.token_embedding(ids).clone()
        for place, token in enumerate(prompt):
            if token < 0:
                embedded[place] = context[-token - 1]
        rows.append(mobileclip.text(embedded.unsqueeze(0), torch.tensor([len(prompt)])))
    (slow,) = torch.autograd.grad(torch.cat(rows).square().sum(), context)
    assert torch.allclose(features, torch.cat(rows), atol=1e-4) and torch.allclose(fast, slow, rtol=1e-3)


def test_prompts_are_tuned_on_it(mobileclip):
    method = prepared(find_method("coop"), {"tokens": 2}, mobileclip)
    losses = train_recorded(method, random_images(mobileclip), epochs=10)
    assert min(losses[-5:]) < losses[0]


def test_seeing_all_is_part_of_the_fingerprint(tmp_path):
    causal = load_backbone(write_mobileclip(tmp_path, causal=True)).fingerprint
    assert causal != load_backbone(write_mobileclip(tmp_path, causal=False)).fingerprint


def changed(section: str, **content: object) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        config = json.loads((folder / "open_clip_config.json").read_text())
        part = config["model_cfg"] if section == "model_cfg" else config["model_cfg"][section]
        part.update(content)
        (folder / "open_clip_config.json").write_text(json.dumps(config))

    return spoil


def renamed(old: str, new: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        state = load_file(folder / "open_clip_model.safetensors")
        state = {key.replace(old, new): value for key, value in state.items()}
        save_file(state, folder / "open_clip_model.safetensors")

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (changed("vision_cfg", timm_model_name="no_such_net"), "cannot build 'no_such_net'"),
        (changed("vision_cfg", timm_model_name=None), "timm_model_name is None"),
        (changed("vision_cfg", timm_pool="map"), "timm_pool is 'map'"),
        (changed("vision_cfg", timm_proj="linear"), "timm_proj 'linear'"),
        (
            changed("vision_cfg", timm_model_name="tiny_vit", timm_pool="token"),
            "lacks the tensors visual.trunk",
        ),
        (changed("vision_cfg", image_size="big"), "image_size 'big'"),
        (changed("model_cfg", embed_dim=48), "embed_dim is 48, the tensors say 32"),
        (changed("text_cfg", text_model_name="mct"), "text_model_name='mct' is not supported"),
        (renamed("text.ln_final", "text.other"), "lacks the tensors ln_final"),
        (renamed("visual.trunk.stem", "visual.trunk.other"), "lacks the tensors visual.trunk.stem"),
        (renamed("visual.trunk.", "image_encoder.model."), "give the same model in open_clip's form"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path, spoil, message):
    folder = write_mobileclip(tmp_path)
    spoil(folder)
    with pytest.raises(InputError) as caught:
        load_backbone(folder)
    said = str(caught.value)
    assert message in said and "\n" not in said and len(said) < 450


def test_the_weights_alone_ask_for_their_config(tmp_path):
    folder = write_mobileclip(tmp_path)
    with pytest.raises(InputError, match=r"whose name is in open_clip_config\.json"):
        weights = folder / "open_clip_model.safetensors"
        load_backbone(weights.rename(tmp_path.parent / f"{tmp_path.name}.safetensors"))

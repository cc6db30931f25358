"""Zero-shot CLIP: the class name in a sentence, no training.

p(y = c | x) = softmax_c( s·cos(f(x), g_c) )
single:    g_c = g("a photo of a {c}.")                the dataset's own sentence
ensemble:  g_c = (1/T) Σ_t g(t(c)) / ‖g(t(c))‖         T general sentences, each of which counts alike
both:      the mean of the two, each of length 1
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.learners.method import Method, MethodConfig, setting
from pbprompt.registry import register
from pbprompt.vision.images.names import name_key, read_name
from pbprompt.vision.similarity import mean_features
from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.engine import encode_texts

ENSEMBLE = (
    "a photo of a {}.",
    "a blurry photo of a {}.",
    "a close-up photo of one {}.",
    "a photo of a small {}.",
    "a photo of a large {}.",
    "a drawing of a {}.",
    "a picture of many {}.",
)
# fmt: off
_PHOTOS = ("bad", "low resolution", "cropped", "bright", "dark", "close-up", "black and white", "pixelated",
           "jpeg corrupted", "blurry", "good")
_OF = ("a sculpture", "a rendering", "a tattoo", "a drawing", "a painting", "a doodle", "a sketch",
       "a rendition", "a photo", "art", "graffiti", "itap")  # itap: I took a picture
# fmt: on
_THINGS = ("hard to see", "clean", "dirty", "cool", "large", "nice", "weird", "small")
_MADE = ("embroidered", "plastic", "origami", "toy", "cartoon", "plushie")
CLIP_EIGHTY = (  # what CLIP's authors used on ImageNet
    *(f"a {kind} photo of {the} {{}}." for the in ("a", "the") for kind in _PHOTOS),
    *(f"a photo of {the} {kind} {{}}." for the in ("a", "the") for kind in _THINGS),
    *(f"{the} {kind} {{}}." for the in ("a", "the") for kind in _MADE),
    *(f"{what} of {the} {{}}." for the in ("a", "the") for what in _OF),
    *(f"a photo of {one} {{}}." for one in ("many", "my", "one")),
    *("itap of my {}.", "a {} in a video game.", "the {} in a video game."),
)
CLIP_SEVEN = (  # those of its 80 that CLIP's authors found enough on ImageNet
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)

Templates = Literal["single", "ensemble", "both", "clip", "clip-80"]
SEVERAL = {"ensemble": ENSEMBLE, "both": ENSEMBLE, "clip": CLIP_SEVEN, "clip-80": CLIP_EIGHTY}
REMEMBERED = 4  # lists of names with their sentences, of each backbone
_LATELY: "WeakKeyDictionary[Backbone, dict[Any, Tensor]]" = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class ZeroShotConfig(MethodConfig):
    """Nothing is trained: only the sentences are a choice."""

    templates: Templates = setting(
        "single",
        "the dataset's sentence, the mean over several general ones (ours, CLIP's own seven or 80), or both",
    )
    descriptions: tuple[tuple[str, ...], ...] = setting(
        (), "a class and sentences that say what it is, in place of those about its name"
    )


def sentences(classes: Sequence[str], template: str) -> list[str]:
    """Every class name in a sentence; {} is where the name goes."""
    return [template.replace("{}", read_name(name).replace("_", " ")) for name in classes]


def sentence_features(backbone: Backbone, classes: Sequence[str], template: str) -> Float[Tensor, "c d"]:
    """Text features of the sentences, not normalised."""
    return encode_texts(backbone, sentences(classes, template))


@register("zeroshot")
class ZeroShot(Method):
    """Whole sentences for each class; nothing is learned."""

    Config = ZeroShotConfig
    takes_several = True
    paper = "Radford et al., 2021"
    config: ZeroShotConfig

    def prepare(self, classes: Sequence[str], template: str) -> None:
        super().prepare(classes, template)
        self._features = name_features(self.backbone, tuple(classes), template, self.config)

    def class_features(self, samples: int, generator: torch.Generator) -> Float[Tensor, "s c d"]:
        return self._features.unsqueeze(0)


def name_features(
    backbone: Backbone, classes: tuple[str, ...], template: str, config: ZeroShotConfig
) -> Float[Tensor, "c d"]:
    """The features of the names, which a copy of a model, or one that learns on, need not make again."""
    lately = _LATELY.setdefault(backbone, {})
    told = config.templates, config.descriptions
    names = tuple(map(read_name, classes))
    key = (classes, names, template, *told, backbone.fingerprint, backbone.dtype, backbone.device)
    features = lately.pop(key, None)
    if features is None:
        features = _features(backbone, classes, template, config.templates)
        said = {name_key(name): texts for name, *texts in config.descriptions}
        for row, name in enumerate(classes if said else ()):
            if texts := said.get(name_key(name), said.get(name_key(read_name(name)))):
                features[row] = mean_features(encode_texts(backbone, texts).unsqueeze(1))[0].to(features)
    lately[key] = features  # the last again
    while len(lately) > REMEMBERED:
        del lately[next(iter(lately))]
    return features


def _features(
    backbone: Backbone, classes: tuple[str, ...], template: str, templates: Templates
) -> Float[Tensor, "c d"]:
    if templates == "single":
        return sentence_features(backbone, classes, template)
    several = SEVERAL[templates]
    read = (
        {template: name_features(backbone, classes, template, ZeroShotConfig())}
        if templates == "both"
        else {}
    )
    read |= {text: sentence_features(backbone, classes, text) for text in several if text not in read}
    general = mean_features(torch.stack([read[text] for text in several]))
    return mean_features(torch.stack([read[template], general])) if templates == "both" else general

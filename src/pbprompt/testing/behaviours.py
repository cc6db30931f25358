"""The behaviours, a function each: it is given a method's class and raises where the behaviour is missing."""

import sys
import tempfile
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pbprompt.config import describe
from pbprompt.errors import InputError
from pbprompt.evidence.learners import MultiLabel
from pbprompt.learners.memory import Memory
from pbprompt.learners.trained import Trained
from pbprompt.model.folder import describe_model
from pbprompt.model.predictor import predict_features, predictive, zero_shot
from pbprompt.model.scoring import score
from pbprompt.model.tuned import TunedModel
from pbprompt.registry import find_method
from pbprompt.testing.fits import (
    NAMES,
    SHOTS,
    Kind,
    Settings,
    as_tuned,
    demand,
    few_of_the_sample,
    fitted,
    from_the_first_block,
    prepared,
    probabilities,
    random_images,
    tiny_dino,
    tiny_resnet,
    tiny_vit,
    to_train_on,
    train_recorded,
)
from pbprompt.vision.similarity import unit
from pbprompt.vision.towers.backbone import Encoded, random_backbone

Check = Callable[..., None]  # check(kind, **settings)

NEW = ("train", "moon")
MANY = 100  # classes: more than a feature of these towers has numbers
STEPS = 80  # in which a method has to learn
APART = 20  # in which it has to tell classes of one name apart
NEAR = 1e-3  # between a probability on a CPU and on a GPU
EQUALS = "=←∝≈"  # a formula has one of them
PAIRED = (  # towers, precisions and numbers of classes: each with each of the others
    *((tiny_vit, torch.float32, MANY), (tiny_vit, torch.bfloat16, 2)),
    *((tiny_resnet, torch.float32, 2), (tiny_resnet, torch.bfloat16, MANY)),
)
CHECKS: list[Check] = []


def _behaviour(check: Callable[[Kind, Settings], None]) -> Check:
    """Add a check, which tells whatever goes wrong in it as one sentence with its docstring."""

    @wraps(check)
    def named(kind: Kind, **settings: Any) -> None:
        try:
            check(kind, settings)
        except Exception as error:
            what = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            raise AssertionError(f"method {_name(kind)!r} must {check.__doc__}: {what}") from error

    CHECKS.append(named)
    return named


@_behaviour
def says_what_it_is(kind: Kind, settings: Settings) -> None:
    """be registered, and tell its paper, its formula, its settings and what it can do"""
    demand(find_method(_name(kind)) is kind, "another class is registered by that name")
    demand(bool(kind.paper), "`paper` is empty")
    method = prepared(kind, settings, tiny_vit())
    idle = not kind.trains and list(method.parameters())
    demand(not idle, "nothing would train its parameters: derive it from `Trained`")
    about = f"{sys.modules[kind.__module__].__doc__}\n{kind.__doc__}"
    no_formula = f"its docstring or its module's states no formula: write one with any of {' '.join(EQUALS)}"
    demand(any(sign in about for sign in EQUALS), f"{no_formula} in it, such as g_c = t_c + x_c")
    silent = [setting for setting, _, text in describe(kind.Config()) if not text]
    demand(not silent, f"no help for the settings {silent}: make them by `setting(default, text)`")
    demand(not (method.image_conditioned and method.exportable), "image-conditioned, it is not exportable")
    demand(type(kind.revision) is int and kind.revision > 0, "`revision` is not 1 or more")


@_behaviour
def learns(kind: Kind, settings: Settings) -> None:
    """lower its loss, and tell its training images better than zero-shot does"""
    if not kind.trains:
        return
    few = few_of_the_sample("lite-vit" if kind.tunes_towers else "lite")
    method = prepared(kind, settings, few.backbone, few.classes, few.template)
    images = from_the_first_block(method, few.images)
    epochs = 0
    if isinstance(method, Trained):
        epochs = max(STEPS // 20, STEPS // (len(images) // method.images_a_step(len(images))))
    losses = train_recorded(method, images, epochs)
    quarter = len(losses) // 4
    first, last = sum(losses[:quarter]), sum(losses[len(losses) - quarter :])
    demand(not losses or last < first, "its loss did not fall from the first quarter to the last")
    names = zero_shot(few.backbone, few.classes, few.template)
    plain = score(predict_features(names, few.images), few.images)
    seen = as_tuned(method, images)
    tuned = score(predict_features(predictive(method), seen), seen)
    demand(tuned["nll"] < plain["nll"], f"nll {tuned['nll']:.4g}, zero-shot {plain['nll']:.4g}")
    better = tuned["accuracy"] >= plain["accuracy"]
    demand(better, f"accuracy {tuned['accuracy']:.1%}, zero-shot {plain['accuracy']:.1%}")


@_behaviour
def is_a_function_of_its_seed(kind: Kind, settings: Settings) -> None:
    """give the same predictions for the same seed, and leave the towers as they are"""
    backbone = tiny_vit()
    towers = {name: value.clone() for name, value in backbone.state_dict().items()}
    images = random_images(backbone)
    first, second = (probabilities(fitted(kind, settings, backbone), images) for _ in range(2))
    demand(torch.equal(first, second), f"two fits are {_farthest(first, second):.2g} apart")
    changed = [name for name, value in backbone.state_dict().items() if not torch.equal(value, towers[name])]
    demand(not changed, f"training changed {changed}")


@_behaviour
def saves_and_loads(kind: Kind, settings: Settings) -> None:
    """predict the same to the last bit after saving and loading"""
    backbone = tiny_vit()
    method, images = fitted(kind, settings, backbone), random_images(backbone)
    with tempfile.TemporaryDirectory() as folder:
        info = describe_model(method, seed=1, shots=SHOTS)
        TunedModel(method, info).save(folder)
        read = TunedModel.load(folder, backbone)
        loaded, info = read.method, read.info
    demand(info.classes == NAMES, f"its classes are {info.classes}")
    before, after = probabilities(method, images), probabilities(loaded, images)
    demand(torch.equal(before, after), f"they are {_farthest(before, after):.2g} apart")
    loaded.prepare(NAMES, "a {}.")
    again = torch.equal(before, probabilities(loaded, images))
    demand(again, "not so once it was prepared again for its classes")


@_behaviour
def goes_back_to_its_start(kind: Kind, settings: Settings) -> None:
    """be where it started if nothing of its training is kept (keep=0)"""
    if not kind.trains:
        return
    backbone = tiny_vit()
    start = fitted(kind, settings, backbone, steps=0)
    kept = fitted(kind, {**settings, "keep": 0.0}, backbone)
    images = random_images(backbone)
    apart = _farthest(probabilities(start, images), probabilities(kept, images))
    demand(apart == 0, f"predictions are {apart:.2g} apart")


@_behaviour
def takes_new_names_or_refuses(kind: Kind, settings: Settings) -> None:
    """take names of new classes, or refuse them by an InputError where `takes_new_names` is false"""
    backbone = tiny_vit()
    method, images = fitted(kind, settings, backbone, unseen=NEW), random_images(backbone)
    before = probabilities(method, images)
    if method.takes_new_names:
        method.prepare((*NAMES, *NEW), "a {}.")
        probabilities(method, images)
        return
    otherwise = "it took them: set `takes_new_names = True`, or raise InputError in `prepare`"
    _refused(lambda: method.prepare((*NAMES, *NEW), "a {}."), "class", otherwise)
    demand(torch.equal(before, probabilities(method, images)), "it is another after it refused")


@_behaviour
def keeps_classes_as_they_are(kind: Kind, settings: Settings) -> None:
    """tell the former classes apart as before when names are added, removed or put in another order"""
    backbone = tiny_vit()
    method, images = fitted(kind, settings, backbone, unseen=NEW), random_images(backbone)
    found = as_tuned(method, to_train_on(method, images))
    seen = Encoded(found.global_, found.patches.to(found.global_))

    def between(classes: tuple[str, ...], some: tuple[str, ...]) -> Float[Tensor, "s n c"]:
        """Logits of some classes above the first of them, under each draw."""
        method.prepare(classes, "a {}.")
        with torch.no_grad():
            bank = predictive(method, 3, seed=5).bank
            logits = method.sample_logits(seen, bank)[..., [classes.index(name) for name in some]]
        return logits - logits[..., :1]

    before = between(NAMES, NAMES)
    others = [NAMES[::-1], NAMES[:2], *([(NEW[0], *NAMES)] if method.takes_new_names else [])]
    for classes in others:
        some = tuple(name for name in NAMES if name in classes)
        try:
            after = between(classes, some)
        except InputError:
            demand(not method.takes_new_names, f"it refuses {', '.join(classes)}")
            continue
        apart = _farthest(before[..., : len(some)], after)
        demand(apart < NEAR, f"for {', '.join(classes)}, logits are {apart:.2g} apart")


@_behaviour
def works_on_other_towers(kind: Kind, settings: Settings) -> None:
    """predict on vision transformers and residual networks, for few and many classes, in each precision"""
    for make, dtype, count in PAIRED:
        backbone = make(dtype)
        names = tuple(f"thing {n}" for n in range(count))
        images = random_images(backbone, torch.arange(max(4, count)) % count)
        if kind.tunes_towers and make is tiny_resnet:
            otherwise = "it took a tower without blocks: set `tunes_towers = False`"
            _refused(lambda: prepared(kind, settings, tiny_resnet()), "blocks", otherwise)
            continue
        try:
            method = fitted(kind, settings, backbone, names, images, steps=2)
            probabilities(method, images.subset(slice(4)), samples=2)
        except Exception as error:
            where = f"{backbone.config.name}, {dtype}, {count} classes"
            raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error


@_behaviour
def does_without_text_or_refuses(kind: Kind, settings: Settings) -> None:
    """work on an image tower without text where `needs_text` is false, or else be refused there"""
    backbone = tiny_dino()
    images = random_images(backbone)
    if kind.needs_text:
        _refused(lambda: fitted(kind, settings, backbone), "text", "it took one: set `needs_text = False`")
        return
    method = fitted(kind, settings, backbone)
    demand(not method.takes_new_names, "`takes_new_names` is true, though no name can be read")
    own = probabilities(method, images).gather(1, images.labels.unsqueeze(1)).mean()
    demand(bool(own > 1 / len(NAMES)), f"its training images' own classes have {own:.1%} on the average")


@_behaviour
def works_on_a_gpu(kind: Kind, settings: Settings) -> None:
    """train on a GPU, where there is one, and predict there as on a CPU"""
    if not torch.cuda.is_available():
        return
    there = random_backbone(tiny_vit().config).to("cuda")
    images = random_images(there)
    probabilities(fitted(kind, settings, there), images)
    here = fitted(kind, settings, tiny_vit())
    moved = fitted(kind, settings, there, steps=0)
    moved.load_state_dict(here.state_dict())
    apart = _farthest(probabilities(here, images), probabilities(moved, images).cpu())
    demand(apart < NEAR, f"probabilities are {apart:.2g} apart")


@_behaviour
def keeps_classes_of_one_name_apart(kind: Kind, settings: Settings) -> None:
    """keep two classes of one name two: labels are the identity"""
    backbone, twins = tiny_vit(), ("crane", "dog", "crane")
    images = random_images(backbone)
    fresh = prepared(kind, settings, backbone, twins)
    by_name = fresh.takes_new_names and not issubclass(kind, Memory)
    found = probabilities(fitted(kind, settings, backbone, twins, images, 3 if by_name else APART), images)
    if by_name:
        return
    for label, twin in ((0, 2), (2, 0)):
        own = found[images.labels == label].mean(0)
        demand(bool(own[label] > own[twin]), f"images of class {label} are not told from those of {twin}")


@_behaviour
def takes_unbalanced_classes(kind: Kind, settings: Settings) -> None:
    """train on classes of 1, 2 and 9 images"""
    backbone = tiny_vit() if kind.tunes_towers else tiny_resnet()
    images = random_images(backbone, torch.tensor([0] + [1] * 2 + [2] * 9))
    probabilities(fitted(kind, settings, backbone, NAMES, images), images)


@_behaviour
def takes_a_class_without_images_or_names_it(kind: Kind, settings: Settings) -> None:
    """train though a class has no image, or refuse by an InputError that names the class"""
    backbone = tiny_vit()
    images = random_images(backbone, torch.arange(8) % 2)
    try:
        method = fitted(kind, settings, backbone, NAMES, images)
    except InputError as error:
        demand(NAMES[2] in str(error), f"it says {str(error)!r}")
    else:
        probabilities(method, images)


@_behaviour
def is_multi_label_where_it_says_so(kind: Kind, settings: Settings) -> None:
    """tell images of several labels each where it is `MultiLabel`"""
    backbone = tiny_vit()
    method, images = prepared(kind, settings, backbone), random_images(backbone)
    if not isinstance(method, MultiLabel):
        return
    has = torch.nn.functional.one_hot(images.labels, len(NAMES)).float()
    has[images.labels == 0, 1] = 1
    found = method.label_head(images.images, has).probabilities(unit(images.global_))
    shapes = f"probabilities are of shape {tuple(found.shape)}, not {tuple(has.shape)}"
    demand(found.shape == has.shape, shapes)
    apart = float(found[has > 0].mean() - found[has == 0].mean())
    demand(apart > 0, f"labels that are there have {-apart:.1%} less than those that are not")


def _refused(call: Callable[[], object], word: str, otherwise: str) -> None:
    """Demand an InputError of one line that has the word in it."""
    try:
        call()
    except InputError as error:
        demand(word in str(error) and "\n" not in str(error), f"it says {str(error)!r}, not what to do")
    else:
        raise AssertionError(otherwise)


def _farthest(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


def _name(kind: Kind) -> str:
    return getattr(kind, "name", kind.__name__)

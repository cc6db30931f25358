"""Part `predict`: images/s of the image tower, of predictions on top of it, and of the plain ways."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from benchmarks.speed.measuring import apart, on_cuda
from benchmarks.speed.plain import PlainLoss
from benchmarks.speed.rates import has_bfloat16, rate
from benchmarks.speed.setups import SHOTS, Case, Options, make_backbone, make_method
from pbprompt.model.predictor import SAMPLES, predictive
from pbprompt.research.costs import random_images
from pbprompt.vision.towers.backbone import Backbone
from pbprompt.vision.towers.vit import VitConfig

PLAIN_BATCH = 100  # images between two runs of the text tower, as the usual test loaders have it
CPU_BATCH, CUDA_BATCH = 4, 256
EACH_PROCESSOR = "ours, a batch a processor"
Row = dict[str, Any]


def run(options: Options) -> Iterator[Row]:
    """What is compared is measured in one process."""
    device, cuda = options.device, on_cuda(options.device)
    big, dtype = ("ViT-B/16", "float16") if cuda else ("lite", "float32")
    name = "tiny" if options.quick else big
    few = 6 if options.quick else 101 if cuda else 100
    for classes in (few, 1000) if cuda and not options.quick else (few,):
        for method, way in (("pbprompt", sampled), ("coop", coop)):
            yield apart(device, way, Case(method, name, classes, device, dtype, 2 * options.limit))
    yield apart(device, cocoop, Case("cocoop", name, few, device, dtype, 2 * options.limit))
    if not cuda:
        yield apart(device, embedded_tower, Case("", "lite", 0, device, dtype, 2 * options.limit))
    towers = Case("", "tiny" if options.quick else "ViT-B/16", 0, device, dtype, 2 * options.limit)
    yield from apart(device, cuda_towers if cuda else cpu_towers, towers)


def _row(what: str, backbone: Backbone, way: str, images: float, **more: Any) -> Row:
    precision = str(backbone.dtype).removeprefix("torch.")
    about = {"what": what, "backbone": backbone.config.name, "precision": precision, "way": way}
    return about | {"images_per_second": images} | more


def _against(row: Row, other: Row) -> Row:
    """The row with its ratio to another."""
    fast, slow = row["images_per_second"], other["images_per_second"]
    against = f"{other['way']}, {other['precision']}"
    return row | {"against": against, "against_images_per_second": slow, "ratio": fast / slow}


def tower_rate(backbone: Backbone, batch: int, limit: float) -> float:
    """Images/s on a CPU where every processor takes batches of its own, as encoding files does."""
    pixels, threads = random_images(backbone, batch), torch.get_num_threads()
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        run = torch.inference_mode()(lambda _: backbone.image(pixels))
        found = rate(lambda: list(pool.map(run, range(2 * threads))), 2 * threads * batch, "cpu", limit)
    torch.set_num_threads(threads)
    return found


@torch.inference_mode()
def _rate(run: Callable[[Tensor], object], pixels: Tensor, limit: float) -> float:
    return rate(lambda: run(pixels), len(pixels), pixels.device.type, limit)


def sampled(case: Case) -> Row:
    """PBPrompt with its sampled classifiers drawn once, beside the bare tower on the same images."""
    backbone = make_backbone(case.backbone, case.device, case.dtype)
    predictor = predictive(make_method(case, backbone), SAMPLES)
    pixels = random_images(backbone, CUDA_BATCH if case.cuda else CPU_BATCH)
    bare = _rate(backbone.image, pixels, case.limit)
    whole = _rate(lambda x: predictor(backbone.image(x)), pixels, case.limit)
    row = _row(f"PBPrompt, {SAMPLES} samples", backbone, "ours", whole, classes=case.classes)
    return _against(row, _row("image tower", backbone, "bare image tower", bare))


def coop(case: Case) -> Row:
    """CoOp: class features made once, against the text tower over all positions for every batch of 100."""
    return _ours_and_plain("CoOp", "plain: text tower for every batch", case, PLAIN_BATCH)


def cocoop(case: Case) -> Row:
    """CoCoOp: every image has its own prompts; the plain way takes one image after the other."""
    return _ours_and_plain("CoCoOp", "plain: image by image", case, PLAIN_BATCH if case.cuda else 8)


def _ours_and_plain(what: str, way: str, case: Case, batch: int) -> Row:
    backbone = make_backbone(case.backbone, case.device, case.dtype)
    method = make_method(case, backbone)
    plain, predictor = PlainLoss(method, SHOTS * case.classes), predictive(method)
    pixels = random_images(backbone, batch)
    slow = _rate(lambda x: plain.logits_of(backbone.image(x)), pixels, case.limit)
    fast = _rate(lambda x: predictor(backbone.image(x)), pixels, case.limit)
    return _against(_row(what, backbone, "ours", fast, classes=case.classes), _row(what, backbone, way, slow))


def embedded_tower(case: Case) -> Row:
    backbone = make_backbone(case.backbone, case.device)
    found = tower_rate(backbone, CPU_BATCH, case.limit)
    return _row("image tower", backbone, EACH_PROCESSOR, found, pixels=backbone.preprocess.size)


def cpu_towers(case: Case) -> list[Row]:
    """The library's tower beside transformers' of the same sizes, and both again in bfloat16."""
    exact = make_backbone(case.backbone, "cpu")
    ours = _row("image tower", exact, EACH_PROCESSOR, tower_rate(exact, CPU_BATCH, case.limit))
    theirs = _transformers_row(exact, case.limit)
    if theirs is None:
        return [ours | {"note": "transformers is not installed: nothing to compare with"}]
    rows = [_against(ours, theirs)]
    if has_bfloat16():
        rounded, pixels = make_backbone(case.backbone, "cpu", "bfloat16"), random_images(exact, CPU_BATCH)
        with torch.inference_mode():
            wanted, found = (tower.image(pixels).global_.float() for tower in (exact, rounded))
        cosine = torch.cosine_similarity(wanted, found).min().item()
        fast = _row("image tower", rounded, EACH_PROCESSOR, tower_rate(rounded, CPU_BATCH, case.limit))
        fast["note"] = f"approximate: cosine with float32 at least {cosine:.5f}"
        rows += [_against(fast, known) for known in (theirs, _transformers_row(rounded, case.limit)) if known]
    return rows


def _transformers_row(backbone: Backbone, limit: float) -> Row | None:
    """transformers' tower with the better of two batches."""
    tower, pixels = transformers_tower(backbone), random_images(backbone, 4 * CPU_BATCH)
    if tower is None:
        return None
    best = max(_rate(tower, some, limit) for some in (pixels[:CPU_BATCH], pixels))
    return _row("image tower", backbone, "transformers' CLIPModel", best)


def cuda_towers(case: Case) -> list[Row]:
    """Half precisions, and the second one compiled."""
    rows = []
    for dtype in ("float16", "bfloat16"):
        backbone = make_backbone(case.backbone, case.device, dtype)
        pixels = random_images(backbone, CUDA_BATCH)
        rows.append(_row("image tower", backbone, "eager", _rate(backbone.image, pixels, case.limit)))
    eager = rows[-1]
    try:
        compiled = _rate(torch.compile(backbone.visual, dynamic=False), pixels, case.limit)
    except Exception as error:  # a machine without a compiler: whatever torch raises is the finding
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return [*rows, eager | {"way": "compiled", "images_per_second": None, "note": reason}]
    return [*rows, _against(_row("image tower", backbone, "compiled", compiled), eager)]


def transformers_tower(backbone: Backbone) -> Callable[[Tensor], Tensor] | None:
    """Preprocessed images -> features of a CLIPModel with random weights; None without transformers."""
    try:
        from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection
    except ImportError:
        return None
    sizes = backbone.config.vision
    assert isinstance(sizes, VitConfig)
    config = CLIPVisionConfig(
        hidden_size=sizes.width,
        intermediate_size=4 * sizes.width,
        projection_dim=backbone.embed_dim,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        image_size=sizes.image_size,
        patch_size=sizes.patch_size,
        hidden_act=backbone.config.activation,
    )
    model = CLIPVisionModelWithProjection(config).eval().to(backbone.device, backbone.dtype)

    def features(pixels: Tensor) -> Tensor:
        with torch.inference_mode():
            return model(pixel_values=pixels).image_embeds

    return features

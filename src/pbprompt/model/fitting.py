"""A model fitted into a folder: claimed, trained, judged and saved; the same call goes on after an end."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from pbprompt import distributed
from pbprompt.files import file_hash
from pbprompt.learners.fit_options import USUAL, FitOptions
from pbprompt.learners.method import Method, MethodConfig
from pbprompt.learners.trained import Trained
from pbprompt.model.evaluate import evaluated
from pbprompt.model.manifest import claim
from pbprompt.model.streamed import check_streams, fit_gathered, gather_stream, kept_beside
from pbprompt.model.streamed_statistics import Gathered
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.features.cache import FeatureBank
from pbprompt.vision.images.build_dataset import NONE, OF_A_DRAW, Choices, Shares
from pbprompt.vision.images.fewshot import write_draw
from pbprompt.vision.images.items import Dataset
from pbprompt.vision.images.names import from_folder, from_label
from pbprompt.vision.images.stream import Stream
from pbprompt.vision.towers.backbone import Backbone

TO_TRY = 6
ASIDE = 0.2  # of each class to validate, and as many to test, for methods that nothing can be left out of
LABELS_TO_TEST = 0.3  # of each label


def fit_into(
    folder: Path,
    dataset: Dataset,
    bank: FeatureBank,
    kind: type[Method],
    config: MethodConfig,
    options: FitOptions = USUAL,
    *,
    temperature: bool = False,
    command: Mapping[str, Any] | None = None,
) -> TunedModel:
    """Fit to a dataset or a draw of it, judge by other images, and save the model with its figures.

    Training is checkpointed in the folder: after Ctrl-C or a kill the same call continues from there. Of
    several processes under torchrun, the first writes. `temperature`: scale the probabilities as the
    validation images ask for; `command`: options of the command line, to keep for another fit.

        dataset = open_dataset("photos/")
        bank = FeatureBank(load_backbone("lite"))
        few = draw(dataset, 16, seed=1).apply(dataset)
        model = fit_into(Path("model"), few, bank, CoOp, CoOpConfig())
    """
    main = distributed.is_main()
    with claim(folder) if main else nullcontext():
        model = TunedModel.fit(dataset, bank, kind, config, replace(options, folder=folder))
        model = evaluated(model, dataset, bank, temperature=temperature, unlabelled=options.unlabelled)
        model = _with_facts(model, options=command or {}, to_try=to_try(dataset))
        if main:
            if dataset.drawn:
                write_draw(folder / "draw.jsonl", dataset.drawn)
            model.save(folder)
    return model


def usual_shares(
    kind: type[Method], config: MethodConfig, *, few: bool = False, multi_label: bool = False
) -> Shares:
    """What of data without a split is kept aside to validate and to test: nothing, where a method can be
    judged by leaving images out and learns from all of them."""
    if few:
        return OF_A_DRAW
    if multi_label:
        return (0.0, LABELS_TO_TEST)
    return (ASIDE, ASIDE) if issubclass(kind, Trained) or kind.needs_validation(config) else NONE


def to_try(dataset: Dataset) -> tuple[tuple[str, ...], ...]:
    """Class, file and hash of a few images that nothing is learned from, by which `serve` finds them."""
    firsts: dict[str, Path] = {}
    for item in dataset.val or dataset.test:
        labels = item.labels if dataset.multi_label else (item.label,)
        name = ", ".join(dataset.classes[label] for label in labels) or "no label"
        firsts.setdefault(name, dataset.file(item).absolute())
    few = islice(firsts.items(), TO_TRY)
    return tuple((name, str(file), digest) for name, file in few if (digest := file_hash(file)))


def _with_facts(model: TunedModel, **facts: Any) -> TunedModel:
    return replace(model, info=replace(model.info, data=replace(model.info.data, **facts)))


def fit_stream_into(
    folder: Path,
    stream: Stream,
    backbone: Backbone,
    kind: type[Method],
    config: MethodConfig,
    *,
    seed: int = 1,
    classes_file: Path | None = None,
    going_on: Callable[[int], None] = lambda images: None,
    command: Mapping[str, Any] | None = None,
    unlabelled: Float[Tensor, "m d"] | None = None,
) -> tuple[TunedModel, Gathered]:
    """Fit in one pass over all images of a stream of one source, and save the model; also what was gathered.

    What is gathered is kept beside the folder until the model is written: the same call goes on from there,
    and `going_on` is told after how many images. `classes_file` maps labels to names to read. `unlabelled`:
    features of images without a label.

        lite, stream = load_backbone("lite"), Stream(["shards/*.tar"])
        model, _ = fit_stream_into(Path("model"), stream, lite, Conjugate, ConjugateConfig())
    """
    check_streams(kind, config, backbone)
    source = str(stream.sources[0])
    choices = Choices.of(classes_file, seed=seed)
    naming = from_folder if Path(source).expanduser().is_dir() else from_label
    checkpoint = kept_beside(folder, stream, backbone)
    main = distributed.is_main()
    with claim(folder) if main else nullcontext():
        found = gather_stream(stream, backbone, checkpoint=checkpoint, going_on=going_on)
        model = fit_gathered(
            found, backbone, kind, config, choices,
            source=source, seed=seed, naming=naming, unlabelled=unlabelled,
        )  # fmt: skip
        model = model.with_left_out()
        if main:
            _with_facts(model, options=command or {}).save(folder)
        distributed.agree_on_errors(None)  # which all wait for: now the model is written
        checkpoint.remove()
    return model, found

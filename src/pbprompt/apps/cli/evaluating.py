"""What `evaluate` does: find the images that a model is judged by, judge it, print and write the figures."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pbprompt import distributed
from pbprompt.apps.audit.corrections import corrected
from pbprompt.apps.cli.evaluate import EvaluateOptions
from pbprompt.apps.cli.figures import print_figures, print_tables, twin_words
from pbprompt.apps.cli.options import refuse
from pbprompt.apps.cli.output import next_step, print_json, quote, tell
from pbprompt.apps.cli.predicting import for_class_mix
from pbprompt.apps.explain.cases import of_mistakes
from pbprompt.apps.pages import plots
from pbprompt.apps.pages.model_page import write_figures, write_model_page
from pbprompt.errors import InputError, install_command
from pbprompt.model.decisions import TRAINED
from pbprompt.model.evaluate import LEFT_OUT, can_leave_out, evaluate
from pbprompt.model.learn import bank_on
from pbprompt.model.metrics.evaluation import Evaluation
from pbprompt.model.metrics.resampling import sign_test
from pbprompt.model.scoring import against
from pbprompt.model.series import by_path, series_of
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.features.cache import FeatureCache, without_unreadable
from pbprompt.vision.images.build_dataset import NONE
from pbprompt.vision.images.fewshot import draw
from pbprompt.vision.images.items import Dataset, some
from pbprompt.vision.images.names import by_any_name, called, known_as, missing_names
from pbprompt.vision.images.series import from_rows
from pbprompt.vision.images.sources import open_dataset

OTHERS_TRAIN = "--against fits others to the model's own training images: give the data that it was fitted to"


def run_evaluate(options: EvaluateOptions) -> None:
    """Judge a model as the options say; of several processes under torchrun the first prints."""
    own, device = options.model, distributed.start(options.device)
    tuned = TunedModel.load(own, options.backbone, device, samples=options.samples, seed=options.seed)
    if tuned.multi_label:
        refuse(options, "figures", f"{own} is multi-label, which has no confusion matrix")
        refuse(options, "together against class_mix", f"{own} is multi-label")
    bank = FeatureCache(tuned.backbone, progress=distributed.is_main() and not options.as_json)
    images = images_to_evaluate(tuned, options, bank)
    dataset, part = images.dataset, images.split
    if part == LEFT_OUT:
        refuse(options, "together", "it takes images kept aside from the fit")
        refuse(options, "against_model", "it takes images that neither learned")
    other = "" if tuned.multi_label else other_classes(tuned.classes, dataset.classes)
    tuned = for_class_mix(images.model, options.class_mix)
    seed, shots = tuned.info.seed, tuned.info.shots
    few = draw(dataset, shots, seed).apply(dataset) if options.against and shots else dataset
    if options.against and not few.train:
        raise InputError(OTHERS_TRAIN)
    figures, answers = evaluate(tuned, few, part, bank, rivals=options.against)
    if options.against:
        frozen = bank_on(bank, tuned.method.given)
        train = frozen.encode(few.root, few.train)
        test = None if part == LEFT_OUT else frozen.encode(few.root, few.whole.split(part))
        for name, found in against(
            train, test, seed, series_of(few, few.train, frozen, tuned.info.data.group)
        ):
            tell(f"{name}: done")
            figures["rivals"][name] = found
    if options.together:
        features = bank.encode(dataset.root, dataset.split(part))
        figures["together"] = evaluate(tuned.together(features.global_), dataset, part, bank)[0]
    compared = ""
    if options.against_model is not None:
        folder, tower = options.against_model, tuned.backbone
        former = TunedModel.load(folder, device=tower.device, samples=options.samples, seed=0)
        if not tuned.multi_label:
            named = called_as(former, dataset, options.classes_file)
            former = former.for_classes(named.classes, dataset.template)
        before, earlier = evaluate(former, few, part, bank_on(bank, former.backbone))
        figures["models"] = {str(folder): before}
        if isinstance(answers, Evaluation) and isinstance(earlier, Evaluation):
            compared = difference_words(answers, earlier, folder)
    main = distributed.is_main()
    distributed.stop()
    if not main:
        return
    shown = "all" if images.whole and part != LEFT_OUT else part
    notes = [images.words, other and f"note: {other}", images.warning and f"warning: {images.warning}"]
    if not images.warning and tuned.info.data.dataset == dataset.name:
        notes.append(twin_words(dataset, part, bank))
    if options.html is not None:
        kinds = "labels" if tuned.multi_label else "classes"
        facts = {
            "Model": str(own),
            "Method": tuned.info.method,
            "Backbone": tuned.info.backbone["name"],
            "Data": dataset.name,
            "Images": f"{images.words}, of {len(tuned.classes)} {kinds}",
            "Class mix": "" if options.class_mix == TRAINED else options.class_mix,
            "Classes": other,
        }
        alike = {}
        if isinstance(answers, Evaluation) and part != LEFT_OUT:  # else an image is like itself
            alike = of_mistakes(tuned, answers, dataset.root)
        facts = {name: fact for name, fact in facts.items() if fact}
        write_model_page(options.html, facts, figures, answers, dataset.root, alike)
        notes.append(f"wrote {options.html}")
    if options.figures is not None and isinstance(answers, Evaluation):
        files = write_figures(answers, options.figures, figures.get("trade", ()))
        notes.append(f"wrote {options.figures}: {', '.join(files)}")
        notes.append("" if plots.available() else f"pictures need matplotlib: {install_command('plots')}")
    for note in filter(None, notes):
        print(note, file=sys.stderr)
    if options.as_json:
        facts = {"model": str(own), "data": dataset.name, "root": str(dataset.root), "split": shown}
        print_json({**facts, **figures, **(answers.to_dict() if isinstance(answers, Evaluation) else {})})
        return
    print_figures({"split": shown, **figures})
    if compared:
        print(compared)
    if isinstance(answers, Evaluation):
        print_tables(answers, dataset.root)
    if options.html is None:
        print("--html FILE writes all of this as one page, with pictures", file=sys.stderr)
    if options.against_model is None:
        next_step(f"pbprompt next UNLABELLED/ --model {quote(own)}", "which images to label next")


def other_classes(own: Sequence[str], given: Sequence[str]) -> str:
    """In what the data's classes are not those the model was tuned on, which makes the task another one."""
    parts = {
        "known by name alone": missing_names(own, given),
        "no possible answer here, since the data has no such class": missing_names(given, own),
    }
    return "; ".join(f"{what}: {some(names)}" for what, names in parts.items() if names)


def difference_words(now: Evaluation, before: Evaluation, name: Path) -> str:
    """In how many answers a model differs from another, and how sure the difference is."""
    better, worse = int((now.right & ~before.right).sum()), int((~now.right & before.right).sum())
    words = f"right now and wrong by {name}: {better:,} images; the other way: {worse:,}"
    if better == worse:
        return words
    return f"{words} (chance alone makes such a difference in {sign_test(better, worse):.0%} of cases)"


class EvaluationImages(NamedTuple):
    """The images, and how they stand to the model."""

    model: TunedModel
    """prepared for the data's classes"""
    dataset: Dataset
    split: str
    """of the dataset, or left-out"""
    words: str
    whole: bool
    """whether it is all of the data"""
    warning: str


def images_to_evaluate(model: TunedModel, options: EvaluateOptions, bank: FeatureCache) -> EvaluationImages:
    """Those of a split that is asked for; else the test split; else, where data has none, all of them.

    What a model was fitted to whole is judged by leaving out, where that can be done.
    """
    fitted = model.info.data
    dataset, own = _as_fitted(model, options, bank)
    dataset, dropped = regrouped(dataset, fitted.regrouped)
    dataset = called_as(model, dataset, options.classes_file)
    if not model.multi_label:
        model = model.for_classes(dataset.single_label().classes, dataset.template)
    whole, undivided = len(dataset.items), len(dataset.train) == len(dataset.items)
    notes = [dropped] if dropped else []
    if unreadable := sum(why == "unreadable" for _, why in dataset.skipped):
        lost = "1 image" if unreadable == 1 else f"{unreadable:,} images"
        notes.append(f"left out, since unreadable: {lost} (`pbprompt look` names them)")
    part = options.split or ("all" if undivided else "test")
    if undivided and not options.split and own and not fitted.added and can_leave_out(model, dataset):
        words = f"the {whole:,} images that it was fitted to, each judged by a model that did not see it"
        return EvaluationImages(model, dataset, LEFT_OUT, f"{dataset.name}: {words}", True, "; ".join(notes))
    if own and part in ("all", "train"):
        notes.append("the model was fitted to images that are among these, so that the figures flatter")
    elif not own and fitted.dataset == dataset.name and (undivided or dataset.split_by_seed):
        notes.append(
            f"{dataset.name} is not as it was when the model was fitted: images that it was fitted to may be "
            "among these"
        )
    if part == "all":
        dataset, part = replace(dataset, train=(), val=(), test=dataset.items, held_out=NONE), "test"
    if not (count := len(dataset.split(part))):
        raise InputError(f"{options.data} has no {part} images: leave --split out to judge them all")
    words = f"{count:,} {part} images of {whole:,} (--split all judges every one)"
    words = f"all {count:,} images" if count == whole else words
    return EvaluationImages(
        model, dataset, part, f"{dataset.name}: {words}", count == whole, "; ".join(notes)
    )


def _as_fitted(model: TunedModel, options: EvaluateOptions, bank: FeatureCache) -> tuple[Dataset, bool]:
    """The data, split as when the model was fitted to it; and whether it is what the model was fitted to."""
    fitted, names, path = model.info.data, options.classes_file, Path(options.data).expanduser()
    same = fitted.options.get("data") == str(path.absolute())
    series = fitted.group if same and from_rows(fitted.group) else ""  # by which it was split
    nested = bool(fitted.options.get("nested"))
    opened = partial(
        open_dataset,
        options.data,
        options.root,
        classes_file=names,
        seed=model.info.seed,
        group=series,
        nested=nested,
    )

    def read(**split: Any) -> Dataset:
        dataset, decided = opened(**split), fitted.options.get("corrections")
        if isinstance(decided, str) and fitted.dataset == dataset.name and Path(decided).exists():
            return corrected(called_as(model, dataset, names), Path(decided))[0]
        return dataset

    def readable(dataset: Dataset) -> Dataset:
        files = path.exists() and distributed.world()[1] == 1
        return without_unreadable(dataset, bank)[0] if files else dataset

    def ways(first: Dataset) -> Iterator[Dataset]:
        yield first
        if len(first.train) == len(first.items) and (shares := fitted.held_out):
            yield readable(read(held_out=shares, series=by_path(first, bank, fitted.group)))
        yield replace(first, train=first.items, val=(), test=())  # as --hold-out 0 has it

    def own(dataset: Dataset) -> bool:
        of_earlier = called_as(model, dataset, names).content_hash
        return fitted.content_hash in (dataset.labelled_hash, of_earlier)

    first = read()
    other = not same and fitted.dataset != first.name and len(first.train) == len(first.items)
    if options.against and other and not fitted.held_out and not own(first):  # series take features
        raise InputError(OTHERS_TRAIN)
    first = readable(first)
    return next(((dataset, True) for dataset in ways(first) if own(dataset)), (first, False))


def called_as(model: TunedModel, dataset: Dataset, names: Path | None) -> Dataset:
    """The data with the model's names of its classes, unless others are given."""
    pairs = zip(dataset.classes, known_as(model.classes, dataset.classes), strict=True)
    return replace(dataset, classes=tuple(one if names and one == known else known for one, known in pairs))


def regrouped(dataset: Dataset, named: Mapping[str, str | None]) -> tuple[Dataset, str]:
    """The dataset with its classes called as `pbprompt model` has them since; without those it removed."""
    former, new = by_any_name([*named]), [*named.values()]
    if not any(called(former, name) for name in dataset.classes):
        return dataset, ""
    names = [new[rows[0]] if (rows := called(former, name)) else name for name in dataset.classes]
    classes = tuple(dict.fromkeys(name for name in names if name is not None))
    place = [None if name is None else classes.index(name) for name in names]

    found = dataset.with_labels(lambda item: place[item.label], classes=classes)
    gone = len(dataset.items) - len(found.items)
    words = f"{gone:,} images of classes that were removed from the model are left out" if gone else ""
    return found, words

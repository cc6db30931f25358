"""What a model's calibration promises, in words: after `fit`, and before the answers of `predict`."""

import math
from collections.abc import Iterator, Mapping, Sequence

from pbprompt.apps.cli.predict import REJECT_AT, PredictOptions
from pbprompt.learners.fitted import LeavesOut, ReadsNames
from pbprompt.learners.method import Method
from pbprompt.model.calibration import CERTAINTY, FEW_ANSWERED, Calibration
from pbprompt.model.card import Provenance, threshold_words
from pbprompt.model.decisions import Rule
from pbprompt.model.manifest import CALIBRATION
from pbprompt.model.metrics.conformal import fewest_images
from pbprompt.model.metrics.selective import fewest_right, start, times_as_many
from pbprompt.model.series import MOST
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.images.series import ALIKE

SHOWN_OF_A_SET = 5
FIT_AGAIN = "fit it again, on two photographs of each class or more, or on data with a val/ folder"
LITTLE = 0.05  # of what tells the classes apart


def temperature_words(model: TunedModel) -> str:
    """What `--calibrate` came to."""
    method, temperature = model.info.method, model.info.temperature
    if temperature != 1:
        doubt = "less" if temperature > 1 else "more"
        by = f", by {model.calibration.rests_on}" if model.calibration else ""
        return f"temperature {temperature:.3f}{by}: probabilities are {doubt} sure than {method}'s own"
    so = "the probabilities stay as they are"
    if isinstance(model.method.fitted, LeavesOut):
        so = f"{method}'s probabilities are calibrated already, by its training images, each left out in turn"
    return f"no validation images to fit a temperature to: {so}"


def name_words(method: Method) -> Iterator[str]:
    """How well a class known by its name alone would be found, where leaving classes out can tell."""
    fitted = method.fitted
    if not isinstance(fitted, ReadsNames):
        return
    found, share = fitted.found_by_name(), fitted.told_by_names()
    if share is not None and share < LITTLE:
        yield (
            "the class names say little to this backbone: describe them in sentences (--descriptions), "
            "or leave them: the photographs tell them apart"
        )
    if found is not None:
        advice = ": give new classes photographs" if found < 0.5 else ""
        yield f"of a new class without photographs, its name would find {found:.0%} of the images{advice}"


def series_words(facts: Provenance) -> Iterator[str]:
    """How many photographs count as one with others, and how many might."""
    if facts.in_series:
        words = "have a twin in their class" if facts.group in ("", ALIKE) else "are of a series with others"
        more = "" if facts.group else "; --group says which are one, where more are"
        several = f"{facts.in_series:,} of {facts.images:,} training photographs {words}"
        yield f"{several}: all are judged by series, of which there are {facts.series:,}{more}"
    elif facts.images > MOST and not facts.group:
        yield (
            f"twins were not looked for among more than {MOST:,} photographs: if some are of one series, say "
            "which by --group"
        )
    yield from series_warning(facts)


def series_warning(facts: Provenance) -> Iterator[str]:
    """A warning where promises may rest on photographs that are of one series, and are counted as several."""
    if facts.perhaps_in_series:
        yield (
            f"warning: {facts.perhaps_in_series:,} of {facts.images:,} training photographs look much like "
            "another of their class: if they are of one thing, place or moment, what is promised holds for "
            "such photographs alone, so name the series or say --group near-duplicates; if not, --group none"
        )


def calibration_words(model: TunedModel) -> str:
    """What `predict` can answer with this model, and how to get what it cannot."""
    calibration = model.calibration
    if calibration is None:
        way = "fit `conjugate`, which needs no such images, or add a val/ folder beside train/ and test/"
        if isinstance(model.method.fitted, LeavesOut):
            way = "give it two photographs of each class or more"
        cannot = "`predict` can mark none as unsure and give no sets for --coverage"
        return f"no image was left to judge it by: {cannot}: {way}"
    missing = calibration.classes - calibration.classes_seen
    note = f"; classes without one: {missing} (do not rely on marks and sets for them)" if missing else ""
    rests = f"`predict --reject-at` and `--coverage` rest on {calibration.rests_on}{note}"
    return f"{rests}; {words}" if (words := little_words(calibration, REJECT_AT)) else rests


def little_words(calibration: Calibration, accuracy: float) -> str:
    """What else could be asked for, where a promise would leave nearly everything unsure."""
    answered = calibration.accepted(calibration.threshold(accuracy)).images / len(calibration.single)
    instead = calibration.instead(0.5)
    if answered >= FEW_ANSWERED or instead is None or instead.accuracy >= accuracy:
        return ""
    return (
        f"{1 - answered:.0%} of such images will be unsure with --reject-at {accuracy:g}; "
        f"--reject-at {instead.accuracy:g} would answer half of them or more"
    )


def answer_words(
    model: TunedModel, rule: Rule, options: PredictOptions, other_template: bool
) -> Iterator[str]:
    """What to know of answers that a rule marks: what is promised of them, and where it cannot be."""
    if (calibration := model.calibration) is None:
        yield f"{options.model}: no {CALIBRATION} in it, so no image is marked unsure: {FIT_AGAIN}"
        return
    yield from promise_words(calibration, options.reject_at, options.coverage)
    yield from series_warning(model.info.data)
    if options.names:
        yield "warning: no validation image is of an added class: marks and sets cannot vouch for it"
    samples = model.predictor.bank.shape[0]
    other_seed = samples > 1 and model.seed != calibration.seed
    if samples != calibration.samples or other_seed or (other_template and not calibration.left_out):
        made = f"--samples {calibration.samples}, --seed {calibration.seed} and the model's template"
        yield f"note: the thresholds were made with {made}; with others they are approximate"
    if options.back_off is not None:
        yield back_off_words(calibration, options.back_off)
    quantiles = rule.quantile if isinstance(rule.quantile, tuple) else ()
    if always := [name for name, q in zip(model.classes, quantiles, strict=False) if math.isinf(q)]:
        yield (
            f"warning: {len(always)} of {len(quantiles)} classes have too few validation images of their own "
            f"and are in every set: {shortened(always)}"
        )


def promise_words(calibration: Calibration, reject_at: float | None, coverage: float | None) -> Iterator[str]:
    """What --reject-at and --coverage promise by these images, or what is promised instead."""
    accuracy = REJECT_AT if reject_at is None else reject_at
    images = len(calibration.single)
    promised, threshold = calibration.promised(accuracy)
    if promised < accuracy:
        why = f"it takes {int(fewest_right(accuracy, CERTAINTY))} images, and there are {images}"
        (sure, right), weights = calibration.levels[0], calibration.weights
        if math.isfinite(
            first := start(sure, accuracy, CERTAINTY, weights)
        ):  # enough, but with sure mistakes
            surest = calibration.surest(int(first))
            wrong = round(surest.images - surest.right)
            why = f"of the {surest.images:.0f} it is surest of, {wrong} {'is' if wrong == 1 else 'are'} wrong"
        so = f"{promised:.0%} is promised instead"
        if math.isinf(threshold):
            so = f"{'no' if reject_at is None else 'every'} image is marked unsure"
        times = times_as_many(sure, right, accuracy, CERTAINTY, weights)
        more = f"{times} times as many like these would do" if times else "better features would help"
        yield (
            f"warning: --reject-at {accuracy:g} cannot be promised with {CERTAINTY:.0%} certainty by "
            f"{calibration.rests_on} ({why}): {so}; {more}"
        )
    if math.isfinite(threshold):
        accepted = calibration.accepted(threshold)
        if words := little_words(calibration, promised):
            yield f"note: {words}"
        yield (
            f"unsure: top probability below {threshold:.3f}; the others are right {promised:.0%} of the "
            f"time, with {CERTAINTY:.0%} certainty, by {calibration.rests_on} ({accepted.images:.0f} above, "
            f"{accepted.right / accepted.images:.1%} right)"
        )
    if coverage is None:
        return
    if calibration.mix:
        yield f"sets: hold the true class of {coverage:.0%} of the images of every class"
    elif math.isinf((quantiles := calibration.quantile(coverage).quantiles)[0]):
        takes = f"{fewest_images(coverage):,} images and there are {images}, so every set holds all classes"
        yield f"warning: --coverage {coverage:g} takes {takes}"
    else:
        kinds = f", and of each of {len(quantiles)} kinds from hard to easy" if len(quantiles) > 1 else ""
        yield f"sets: hold the true class of {coverage:.0%} of all images{kinds}"


def back_off_words(calibration: Calibration, accuracy: float) -> str:
    """What --back-off promises, and of how many such images."""
    levels = calibration.answered(calibration.back_off(accuracy))
    total, answered = len(calibration.single), sum(level.images for level in levels)
    if not answered:
        return f"warning: --back-off {accuracy:g} can be promised of no class or group, so all is unsure"
    by_class, right = levels[0].images, sum(level.right for level in levels) / answered
    return (
        f"back-off: answers are right {accuracy:.0%} of the time, with {CERTAINTY:.0%} certainty, by "
        f"{calibration.rests_on}: {by_class / total:.0%} are answered by a class, "
        f"{(answered - by_class) / total:.0%} by a group ({right:.1%} right)"
    )


def mix_words(mix: Mapping[str, float], model: TunedModel) -> str:
    """The classes of which an estimate differs most from training, and by how much."""
    counts = model.class_counts()
    trained = dict(zip(model.classes, (counts / counts.sum()).tolist(), strict=True))
    most = sorted(mix, key=lambda name: -abs(mix[name] - trained[name]))
    return shortened([f"{name} {mix[name]:.1%} (in training {trained[name]:.1%})" for name in most])


def shortened(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - SHOWN_OF_A_SET
    return ", ".join(names[:SHOWN_OF_A_SET]) + (f" and {more} more" if more > 0 else "")


def label_threshold_words(model: TunedModel) -> Iterator[str]:
    """When a multi-label model gives a label."""
    assert model.head is not None
    alone = [name for name, n in zip(model.classes, model.head.positives.tolist(), strict=True) if not n]
    if alone:
        yield f"known by name alone, since no training image has them: {', '.join(alone)}"
    least = threshold_words(list(model.thresholds.values()))
    yield (
        f"a label is given where its probability is at least {least}: that has the best F1 on the "
        f"{model.info.data.images:,} training images, each left out in turn"
    )

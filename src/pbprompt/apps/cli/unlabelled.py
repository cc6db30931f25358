"""Images without labels that `fit` learns from too: read, told of, written down."""

from collections.abc import Callable, Iterator
from pathlib import Path

from pbprompt.apps.batch.pool import Pool, read_pool
from pbprompt.apps.cli.fit import FitCommand
from pbprompt.evidence.unlabelled import SEEN, seen
from pbprompt.files import as_csv, as_text, write_text
from pbprompt.model.card import absorbed_by
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.features.cache import FeatureCache
from pbprompt.vision.images.items import Dataset, some
from pbprompt.vision.images.stream import Stream

NAMED = 3  # images that a sentence names


def read_unlabelled(options: FitCommand) -> Pool | None:
    """The images of --unlabelled; None where it was not given. Of the labelled data itself, those without."""
    if not options.unlabelled:
        return None
    stream = Stream(options.unlabelled, allow_urls=options.allow_urls)
    return read_pool(options.tower, stream, bare=options.data in options.unlabelled)


def without_copies(pool: Pool, few: Dataset, bank: FeatureCache, note: Callable[[str], object]) -> Pool:
    """Without the labelled images that are trained on; with a word on those that are to be tested on."""
    tested = few.whole.test or few.whole.val
    if tested and (found := pool.kept(pool.copies(bank.encode(few.root, tested).global_)).names):
        note(
            f"warning: {len(found):,} of the unlabelled images are test images too, which makes the figures "
            f"too good: {some(found, NAMED)}"
        )
    again = pool.copies(bank.encode(few.root, few.train).global_)
    if again.any():
        note(f"{int(again.sum()):,} of the unlabelled images are labelled too, and count once")
    return pool.kept(~again)


def pool_words(pool: Pool, model: TunedModel) -> Iterator[str]:
    """What became of unlabelled images."""
    if pool.failures:
        yield f"left out, since unreadable: {len(pool.failures):,} images ({pool.failures[0]})"
    if (found := absorbed_by(model.method)) is None:
        yield "no unlabelled images are left to learn from"
        return
    looked = min(len(found.familiar), seen(len(model.classes)))
    strange = looked - int(found.familiar.sum())
    stand = f", of which {looked:,} stand for all" if looked < len(pool.names) or pool.read > SEEN else ""
    yield f"unlabelled: {pool.read:,} images{stand}; {strange:,} look like none of the classes"
    if (verdict := found.verdict) is not None:
        (worse, better), (few, more) = verdict.log_likelihood, verdict.accuracy
        yield (
            f"of {verdict.photographs:,} labelled images, left out in turn, {few:.1%} are right without them "
            f"and {more:.1%} with them (log likelihood {worse:.3f} and {better:.3f} ± {verdict.error:.3f})"
        )
    if found.weight:
        yield f"they are used, and count as {found.weight:,.0f} labelled images"
    elif verdict is not None:
        yield "they are not used: left-out labelled images say that they would not help"
    else:
        yield (
            "they are not used: with so few of them, or so few labels, nothing tells whether they help; "
            "label a second image per class"
        )


def write_pseudo_labels(pool: Pool, model: TunedModel, path: Path) -> None:
    """What each is taken for, and whether it counted."""
    rows = [("image", "label", "probability", "kept")]
    if found := absorbed_by(model.method):
        counted = (found.familiar & bool(found.weight)).tolist()
        for name, one, kept in zip(pool.names, model.predict(pool.encoded), counted, strict=True):
            rows.append((as_text(name), one.label, f"{one.score:.4f}", "yes" if kept else "no"))
    write_text(path, as_csv(rows))

"""Images without labels on the command line: read, told of, written down."""

from pathlib import Path

from rich.console import Console

from pbprompt.apps.batch.pool import Pool, read_pool
from pbprompt.apps.cli.fit import FitCommand
from pbprompt.apps.cli.output import tell
from pbprompt.evidence.unlabelled import SEEN, seen
from pbprompt.files import as_csv, as_text, write_text
from pbprompt.model.card import absorbed_by
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.features.cache import FeatureBank
from pbprompt.vision.images.items import Dataset, some
from pbprompt.vision.images.stream import Stream

NAMED = 3  # images that a sentence names


def read_unlabelled(options: FitCommand) -> Pool | None:
    """The images of --unlabelled; None where it was not given. Of the labelled data itself, those without."""
    if not options.unlabelled:
        return None
    stream = Stream(options.unlabelled, allow_urls=options.allow_urls)
    return read_pool(options.tower, stream, bare=options.data in options.unlabelled)


def without_copies(pool: Pool, few: Dataset, bank: FeatureBank, console: Console) -> Pool:
    """Without the labelled images that are trained on; with a word on those that are to be tested on."""
    tested = few.whole.test or few.whole.val
    if tested and (found := pool.kept(pool.copies(bank.encode(few.root, tested).global_)).names):
        console.print(
            f"warning: {len(found):,} of the unlabelled images are test images too, which makes the figures "
            f"too good: {some(found, NAMED)}"
        )
    again = pool.copies(bank.encode(few.root, few.train).global_)
    if again.any():
        console.print(f"{int(again.sum()):,} of the unlabelled images are labelled too, and count once")
    return pool.kept(~again)


def tell_of_pool(pool: Pool | None, model: TunedModel, pseudo_labels: Path | None, console: Console) -> None:
    """What became of unlabelled images, and what they are taken for in a file."""
    if pool is None:
        return
    if pool.failures:
        console.print(f"left out, since unreadable: {len(pool.failures):,} images ({pool.failures[0]})")
    found = absorbed_by(model.method)
    if found is None:
        console.print("no unlabelled images are left to learn from")
        return
    looked = min(len(found.familiar), seen(len(model.classes)))
    strange = looked - int(found.familiar.sum())
    stand = f", of which {looked:,} stand for all" if looked < len(pool.names) or pool.read > SEEN else ""
    console.print(f"unlabelled: {pool.read:,} images{stand}; {strange:,} look like none of the classes")
    if (verdict := found.verdict) is not None:
        (worse, better), (few, more) = verdict.log_likelihood, verdict.accuracy
        console.print(
            f"of {verdict.photographs:,} labelled images, left out in turn, {few:.1%} are right without them "
            f"and {more:.1%} with them (log likelihood {worse:.3f} and {better:.3f} ± {verdict.error:.3f})"
        )
    if found.weight:
        console.print(f"they are used, and count as {found.weight:,.0f} labelled images")
    elif verdict is not None:
        console.print("they are not used: left-out labelled images say that they would not help")
    else:
        console.print(
            "they are not used: with so few of them, or so few labels, nothing tells whether they help; "
            "label a second image per class"
        )
    if pseudo_labels is not None:
        kept = found.familiar & bool(found.weight)  # counted in
        rows = [("image", "label", "probability", "kept")]
        for name, said, counted in zip(pool.names, model.predict(pool.encoded), kept.tolist(), strict=True):
            (label, probability), *_ = said.likeliest(1)
            rows.append((as_text(name), label, f"{probability:.4f}", "yes" if counted else "no"))
        write_text(pseudo_labels, as_csv(rows))
        console.print(f"wrote {pseudo_labels}: what each is taken for")


def seen_together(model: TunedModel, stream: Stream) -> TunedModel:
    """The model having seen all images of a stream, with a word on what that changes."""
    pool = read_pool(model.backbone, stream)
    after = model.together(pool.images)
    labels = [[said.label for said in each.predict(pool.encoded)] for each in (model, after)]
    changed = sum(one != other for one, other in zip(*labels, strict=True))
    found = absorbed_by(after.method)
    if found is None or not found.weight:
        tell(f"together: {len(pool.names):,} images would not help each other, so that nothing changes")
        return model
    strange = len(pool.names) - int(found.familiar.sum())
    tell(
        f"together: {len(pool.names):,} images inform each other; {changed:,} labels change; {strange:,} "
        "look like none of the classes, and take no part"
    )
    return after

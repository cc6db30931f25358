"""A person labels a folder's images, the most instructive first; the model learns each at once.

A table keeps the labels, written whole after every one, so that ending the server loses nothing and the same
command goes on from there. It is read before it is written: what a person or another server put into it
meanwhile stays, and is learned.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import FastAPI, Request, Response

from pbprompt.apps.explain.cases import comparing
from pbprompt.apps.labelling.next_images import (
    Entry,
    names_in_table,
    next_images,
    read_table,
    table_root,
    write_table,
)
from pbprompt.apps.serve.fairness import Shares
from pbprompt.apps.serve.limits import Limits, Refused
from pbprompt.apps.serve.model import new_names, single_spaced
from pbprompt.apps.serve.schemas import BUSY, KEY, UNUSABLE, Estimate, Label, ToLabel, documented
from pbprompt.apps.serve.service import Service
from pbprompt.apps.serve.uploads import receive
from pbprompt.errors import InputError
from pbprompt.files import held
from pbprompt.learners.fitted import PartialFit
from pbprompt.model.calibration import calibrate_left_out
from pbprompt.model.tuned import TunedModel
from pbprompt.vision.features.cache import FeatureCache, Features
from pbprompt.vision.images.items import Item
from pbprompt.vision.images.names import known_as
from pbprompt.vision.towers.backbone import Encoded

AT_ONCE = 10  # images that one look at all the others chooses, so that they are unlike each other
TABLE = "labels.csv"
WRITING = {507: "the table cannot be written"}


@dataclass
class Labelling:
    """The images, what a person said of some of them, and what comes next.

    Only images that lie in `folder` take part: a link that leads elsewhere shows nothing of what is there.
    """

    folder: Path
    table: Path
    start: TunedModel  # before any of these labels
    features: Features  # of `names`, in order
    names: list[str]  # relative to `root`
    rows: dict[str, Entry]  # of the table, by image; some may wait for their label
    notes: list[str] = field(default_factory=list)  # of what was left out

    def __post_init__(self) -> None:
        self._place = {name: place for place, name in enumerate(self.names)}
        self._queue = {name: row for name, row in self.rows.items() if not row.label and name in self._place}
        self._listed = {*self._queue}  # they stay in the table whatever happens
        self._skipped: set[str] = set()
        self._done: list[tuple[str, str]] = []  # labelled, or skipped (""), since the server started
        self._first = self._estimate(self.start)
        self.model = self._learned(self.rows)
        self.shown = self._next_to_show()

    @classmethod
    def open(
        cls, model: TunedModel, folder: Path, table: Path | None = None, progress: bool = True
    ) -> "Labelling":
        """Look at every image of a folder once; labels that the table has already are learned again."""
        if not isinstance(model.single_label().method, PartialFit):
            raise InputError(
                f"{model.method.name} cannot learn while images are labelled: fit `conjugate`, which can, or "
                "label a table that `pbprompt next` writes"
            )
        if comparing(model):
            raise InputError(
                "a model that compares patches learns no more images: fit it without `--set patches=true`"
            )
        if not folder.is_dir():
            raise InputError(f"{folder}: not a folder: give one that holds the images to label")
        table = table or folder / TABLE
        root, home, listed = table_root(folder, table), folder.resolve(), names_in_table(folder, table)
        rows = {row.image: row for row in read_table(table)} if table.exists() else {}
        inside = [name for name in listed if (root / name).resolve().is_relative_to(home)]
        failures: dict[str, InputError] = {}
        bank = FeatureCache(model.backbone, progress=progress)
        features = bank.encode(root, [Item(name, 0) for name in inside], failures)
        names = [name for name in inside if name not in failures]
        if not names:
            raise InputError(f"{folder}: none of its images can be read: give a folder with some that can")
        notes = [str(error) for error in failures.values()]
        if away := len(listed) - len(inside):
            notes.append(f"{away} links lead out of {folder}: what they lead to is not shown")
        if lost := len({name for name, row in rows.items() if row.label} - {*names}):
            notes.append(f"{lost} labels of {table} are of images that are not in {folder}: not learned")
        return cls(folder, table, model, features, names, rows, notes)

    def path_of(self, name: str) -> Path:
        """Where an image lies; refused where it is none of the folder's."""
        if name not in self._place:
            raise Refused(404, "there is no such image in the folder")
        path = table_root(self.folder, self.table) / name
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise Refused(404, "the image leads out of the folder")
        return path

    def label(self, name: str, label: str | None, added: Sequence[str], limits: Limits) -> TunedModel:
        """The model having learned one image more, or as it was where that is skipped.

        `added`: classes that the server knows by name alone, whose spelling is kept.
        """
        if (row := self._queue.get(name)) is None:
            raise Refused(409, "this image is not waiting for a label: reload the page")
        with held(self.table.parent):
            self._read()
            present = (*self.model.classes, *added)
            label = label if label is None else known_as(present, [single_spaced(label)])[0]
            if name in self._labels(self.rows):
                raise self._changed_meanwhile(name, label or "to skip it")
            if label is None:
                self._skipped.add(name)
            else:
                new_names([label], present, limits)
                if self.shown.image == name and self.shown.suggested is not None:
                    sure = f"{self.shown.scores[self.shown.suggested]:.4f}"
                    row = row._replace(suggested=self.shown.suggested, probability=sure)
                self._write(self.rows | {name: row._replace(label=label)})
        del self._queue[name]
        self._done.append((name, label or ""))
        self.shown = self._next_to_show()
        return self.model

    def undo(self) -> TunedModel:
        """The model without the last label; that image comes next."""
        if not self._done:
            raise Refused(409, "nothing was labelled since the server started: correct the table itself")
        name, label = self._done[-1]
        with held(self.table.parent):
            self._read()
            if self._labels(self.rows).get(name, "") != label:
                raise self._changed_meanwhile(name, "to take that back")
            row = self.rows.get(name, Entry(name, "", "", "", ""))._replace(label="")
            if name in self.rows:
                left = {other: row for other, row in self.rows.items() if other != name}
                self._write(left | {name: row} if name in self._listed else left)
        self._done.pop()
        self._skipped.discard(name)
        self._queue = {name: row, **self._queue}
        self.shown = self._next_to_show()
        return self.model

    def _read(self) -> None:
        """Take in what was written into the table by others."""
        there = self.table.exists()
        if self.rows and not there:
            raise Refused(409, f"{self.table} is gone: put it back, or start the server again")
        rows = {row.image: row for row in read_table(self.table)} if there else {}
        if rows != self.rows:
            self.rows, self.model = rows, self._learned(rows)
            labels = self._labels(rows)
            self._queue = {name: row for name, row in self._queue.items() if name not in labels}
            self.shown = self._next_to_show()

    def _changed_meanwhile(self, name: str, wish: str) -> Refused:
        now = self._labels(self.rows).get(name, "")
        reason = f"{self.table} has {now!r} for {name} by now, not this page's {wish!r}: nothing was written"
        return Refused(409, reason)

    def _write(self, rows: dict[str, Entry]) -> None:
        model = self._learned(rows)  # first: what it cannot learn is not written
        try:
            write_table(self.table, list(rows.values()))
        except OSError as error:
            why = error.strerror or str(error)
            raise Refused(507, f"{self.table} cannot be written: {why}: nothing was learned") from None
        self.rows, self.model = rows, model

    def _labels(self, rows: dict[str, Entry]) -> dict[str, str]:
        """By image, of those that are there."""
        return {name: row.label for name, row in rows.items() if row.label and name in self._place}

    def _learned(self, rows: dict[str, Entry]) -> TunedModel:
        """The model that has learned the labels of the table."""
        labels = self._labels(rows)
        if not labels:
            return self.start
        return self.start.partial_fit(self._encoded(list(labels)), list(labels.values()))

    def _next_to_show(self) -> ToLabel:
        """What to show now: the next image, what the model says of it, and how far it has come."""
        labels, model = self._labels(self.rows), self.model
        done = {*labels, *self._skipped}
        free = [name for name in self.names if name not in done]
        if free and not self._queue:
            images = self._encoded(free)
            answers = model.predict(images)
            for one in next_images(images.global_, answers, min(AT_ONCE, len(free)), seed=len(labels)):
                score, sure = f"{one.score:.4f}", f"{one.probability:.4f}"
                self._queue[free[one.row]] = Entry(free[one.row], "", one.label, sure, score)
        image, after = [*self._queue, None, None][:2]
        scores = {} if image is None else model.predict(self._encoded([image]))[0].scores
        return ToLabel(
            image=image,
            after=after,
            suggested=max(scores, key=scores.__getitem__) if scores else None,
            scores=scores,
            labelled=len(labels),
            left=len(free),
            estimate=self._estimate(model),
            estimate_at_start=self._first,
            may_undo=bool(self._done),
            table=str(self.table),
        )

    def _estimate(self, model: TunedModel) -> Estimate | None:
        judged = calibrate_left_out(model.predictor)
        return None if judged is None else Estimate(right=sum(judged.right), of=len(judged))

    def _encoded(self, names: Sequence[str]) -> Encoded:
        return self.features.subset([self._place[name] for name in names]).images


def add_labelling(
    app: FastAPI, service: Service, labelling: Labelling, limits: Limits, uploads: Shares
) -> None:
    """Let the app hand out a folder's images to label; the model learns each as POST /examples would."""
    service.take(labelling.model)

    @app.get("/labelling", **documented(KEY))
    async def to_label() -> ToLabel:
        """Which image to label now, and how far the model has come."""
        return labelling.shown

    unfit = {409: "not waiting for a label, or a class in another spelling"}

    @app.post("/labelling", **documented(UNUSABLE | BUSY | WRITING | unfit, Label))
    async def label(request: Request) -> ToLabel:
        """Label or skip an image: the model learns it, the table is written, and the next one comes."""
        async with receive(request, Label, limits, uploads) as sent:
            await service.teach(lambda _: labelling.label(sent.image, sent.label, service.added, limits))
        service.metrics.examples.inc(sent.label is not None)
        return labelling.shown

    @app.post("/labelling/undo", **documented(KEY | BUSY | WRITING | {409: "there is nothing to take back"}))
    async def undo() -> ToLabel:
        """Take back what was said last."""
        await service.teach(lambda _: labelling.undo())
        return labelling.shown

    unseen = {404: "no image of the folder", 422: "it cannot be read"}

    @app.get("/labelling/image", response_class=Response, **documented(KEY | unseen))
    async def image(name: str = "") -> Response:
        """An image of the folder, by `?name=`, as a JPEG."""
        return Response(await service.picture(labelling.path_of(name)), media_type="image/jpeg")

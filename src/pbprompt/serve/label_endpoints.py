"""The endpoints of the page where a person labels images."""

from fastapi import FastAPI, Request, Response

from pbprompt.serve.labelling import Labelling
from pbprompt.serve.limits import Limits
from pbprompt.serve.problems import BUSY, UNUSABLE, problems
from pbprompt.serve.schemas import Label, ToLabel, request_body
from pbprompt.serve.service import Service
from pbprompt.serve.uploads import HeldBytes, receive

KEY = {401: UNUSABLE[401]}
WRITING = {507: "the table cannot be written"}


def add_labelling(
    app: FastAPI, service: Service, labelling: Labelling, limits: Limits, held: HeldBytes
) -> None:
    """Let the app hand out a folder's images to label; the model learns each as POST /examples would."""
    service.take(labelling.model, list(labelling.labels.values()))

    @app.get("/labelling", responses=problems(KEY))
    async def to_label() -> ToLabel:
        """Which image to label now, and how far the model has come."""
        return labelling.shown

    @app.post(
        "/labelling",
        responses=problems(
            UNUSABLE | BUSY | {409: "not waiting for a label, or a class in another spelling"}
        ),
        openapi_extra=request_body(Label),
    )
    async def label(request: Request) -> ToLabel:
        """Label or skip an image: the model learns it, the table is written, and the next one comes."""
        async with receive(request, Label, limits, held) as asked:
            said = [] if asked.label is None else [asked.label]
            await service.teach(lambda model: labelling.label(model, asked.image, asked.label, limits), said)
        service.metrics.examples.inc(len(said))
        return labelling.shown

    @app.post(
        "/labelling/undo", responses=problems(KEY | BUSY | WRITING | {409: "there is nothing to take back"})
    )
    async def undo() -> ToLabel:
        """Take back what was said last."""
        await service.teach(lambda model: labelling.undo(), [])
        return labelling.shown

    @app.get(
        "/labelling/image",
        response_class=Response,
        responses=problems(KEY | {404: "no image of the folder", 422: "it cannot be read"}),
    )
    async def image(name: str = "") -> Response:
        """An image of the folder, by `?name=`, as a JPEG."""
        return Response(await service.picture(labelling.path_of(name)), media_type="image/jpeg")

"""The HTTP service: its endpoints, its errors and its life."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from socket import gethostname

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from pbprompt import __version__
from pbprompt.apps.pages.html_page import page
from pbprompt.apps.serve.fairness import Shares
from pbprompt.apps.serve.labelling import Labelling, add_labelling
from pbprompt.apps.serve.limits import Limits, Refused
from pbprompt.apps.serve.middleware import Metrics, Middleware
from pbprompt.apps.serve.protocol import SELDOM, GuardedProtocol
from pbprompt.apps.serve.samples import samples_of
from pbprompt.apps.serve.schemas import (
    BUSY,
    KEY,
    UNUSABLE,
    AddClasses,
    Classes,
    Examples,
    Explain,
    Explanation,
    Health,
    Predict,
    Predictions,
    Samples,
    documented,
)
from pbprompt.apps.serve.service import Service, give_memory_back
from pbprompt.apps.serve.uploads import receive
from pbprompt.errors import InputError, NoNumberError, one_line
from pbprompt.model.class_mix import TRAINED
from pbprompt.model.tuned import TunedModel

PAGE = {"/": ("index.html", "text/html"), "/style.css": ("style.css", "text/css")}
PAGE |= {"/app.js": ("app.js", "text/javascript"), "/common.js": ("common.js", "text/javascript")}
LABEL_PAGE = {"/label": ("label.html", "text/html"), "/label.js": ("label.js", "text/javascript")}
TOUR_PAGE = {"/tour": ("tour.html", "text/html"), "/tour.js": ("tour.js", "text/javascript")}
PNG = {"image/png": {"schema": {"type": "string", "format": "binary"}}}
UNSHARED = {403: "the server keeps no classes: send `classes` with each request"}
TAKEN = {409: "a class is there in another spelling, or the method cannot"}
DAMAGED = {500: "the model's weights are damaged: it answers no numbers"}


def create_app(
    model: TunedModel,
    *,
    limits: Limits | None = None,
    api_key: str | None = None,
    host: str = "localhost",
    examples: bool = False,
    shared_classes: bool = False,
    labelling: Labelling | None = None,
    tour: bool = False,
    photographs: Path | None = None,
) -> FastAPI:
    """The app that serves a model.

    With an API key, only the page, /docs, /openapi.json and /healthz are open. Without one, requests must be
    to an IP address, `localhost`, this machine's name or `host`. With `examples`, whoever may use it may
    teach it labelled images; with `shared_classes`, add classes and remove added ones for all. Without, a
    client sends its further classes with each request, and nothing of them is kept. With `labelling`, whoever
    may use it may label a folder's images at /label; `tour` adds a page that leads through it. `photographs`:
    the training photographs, which a model that compares patches may then show beside its answers.
    """
    limits = limits or Limits()
    metrics = Metrics()
    service = Service(model, limits, metrics, photographs)
    held = Shares(limits.held_bytes, "too much is being uploaded at once")

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        giving_back = asyncio.create_task(give_memory_back())
        yield
        giving_back.cancel()
        service.close()

    app = FastAPI(
        title="pbprompt",
        version=__version__,
        description="Classify images with a tuned model that tells how unsure it is.",
        lifespan=life,
        docs_url=None,
        redoc_url=None,
    )

    @app.post(
        "/predict",
        response_model_exclude_unset=True,
        **documented(UNUSABLE | BUSY | DAMAGED, Predict, form="files"),
    )
    async def predict(request: Request) -> Predictions:
        """Name what is in each image, with probabilities and their uncertainty."""
        async with receive(request, Predict, limits, held, form="files") as asked:
            return await service.predict(asked)

    explained = documented(UNUSABLE | BUSY | DAMAGED | {404: "unknown class"}, Explain, form="file")
    explained["responses"][200] = {"content": PNG}

    @app.post("/explain", response_model=Explanation, **explained)
    async def explain(request: Request) -> Explanation | Response:
        """Show where in an image the sampled prompts of a class look."""
        async with receive(request, Explain, limits, held, form="file") as asked:
            said = await service.explain(asked)
        return Response(said, media_type="image/png") if isinstance(said, bytes) else said

    @app.get("/classes", **documented(KEY))
    async def classes() -> Classes:
        """The classes the model tells apart."""
        now = service.model
        return Classes(
            classes=list(now.classes),
            added=service.added,
            calibrated=now.calibrated,
            class_mix=TRAINED if now.class_mix is None else now.class_mix,
            thresholds=now.thresholds or None,
        )

    @app.post("/classes", **documented(UNUSABLE | BUSY | UNSHARED | TAKEN, AddClasses))
    async def add_classes(request: Request) -> Classes:
        """Add classes by name for all clients, until the server stops."""
        async with receive(request, AddClasses, limits, held) as asked:
            check_shared()
            await service.add_classes(asked)
        return await classes()

    @app.delete("/classes", **documented(KEY | BUSY | UNSHARED | {409: "a class of the model's own"}))
    async def remove_class(name: str = "") -> Classes:
        """Remove an added class, by `?name=`, for all clients; one that is not there is removed already."""
        check_shared()
        await service.remove_class(name)
        return await classes()

    def check_shared() -> None:
        if not shared_classes:
            raise Refused(403, "this server keeps no classes: send them as `classes` with each request")

    tower = model.info.backbone["name"]
    to_try = samples_of(model.info.data.to_try)  # once: no request for them reaches the file system

    @app.get("/samples", **documented(KEY))
    async def samples() -> Samples:
        """Images to try it on: of the model's own data where they can be found."""
        return to_try

    if examples:

        @app.post("/examples", **documented(UNUSABLE | BUSY | TAKEN, Examples, form="files"))
        async def learn(request: Request) -> Classes:
            """Learn labelled images, until the server stops."""
            async with receive(request, Examples, limits, held, form="files") as asked:
                await service.learn(asked)
            return await classes()

    if labelling:
        add_labelling(app, service, labelling, limits, held)

    @app.get("/healthz")
    async def healthz() -> Health:
        """Whether the server works."""
        return Health(
            status="ok",
            method=model.info.method,
            backbone=tower if not Path(tower).exists() else Path(tower).name,  # nobody's business where it is
            classes=len(service.model.classes),
            shared_classes=shared_classes,
            labelling=labelling is not None,
            multi_label=model.multi_label,
            needs_key=bool(api_key),
        )

    @app.get("/metrics", response_class=Response, **documented(KEY))
    async def prometheus() -> Response:
        """Counters in Prometheus' text format."""
        return Response(metrics.page(), media_type="text/plain; version=0.0.4")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page("endpoints.html", **app.openapi()))

    _add_page(app, PAGE | (LABEL_PAGE if labelling else {}) | (TOUR_PAGE if tour else {}))
    _add_error_handlers(app)
    endpoints = frozenset(getattr(route, "path", "") for route in app.routes)
    hosts = frozenset({"localhost", host.lower(), gethostname().lower()})
    app.add_middleware(Middleware, metrics=metrics, endpoints=endpoints, api_key=api_key, hosts=hosts)
    return app


def server_config(app: FastAPI, host: str, port: int, proxy: str | None = None) -> uvicorn.Config:
    """How uvicorn runs the app; the proxy at that address, and no other, says whose requests it passes on."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=GuardedProtocol,
        ws="none",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=30,
        proxy_headers=proxy is not None,  # or whoever is on this machine could pass for many
        forwarded_allow_ips=proxy,
    )
    for name in ("uvicorn.error", "pbprompt.apps.serve"):
        logging.getLogger(name).addFilter(SELDOM)
    return config


def _add_page(app: FastAPI, pages: dict[str, tuple[str, str]]) -> None:
    """The web pages and what they show, read once: no request for them reaches the file system."""
    folder = files("pbprompt.apps.serve").joinpath("page")
    for path, (name, kind) in pages.items():
        content = folder.joinpath(name).read_bytes()

        async def send(content: bytes = content, kind: str = kind) -> Response:
            return Response(content, media_type=kind)

        app.get(path, include_in_schema=False)(send)


def _add_error_handlers(app: FastAPI) -> None:
    """Every refusal is JSON with a reason."""

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        return JSONResponse({"error": one_line(error.reason)}, error.status, error.headers)

    @app.exception_handler(InputError)
    async def unusable(request: Request, error: InputError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 500 if isinstance(error, NoNumberError) else 422)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> JSONResponse:
        headers = dict(error.headers or {})
        if "Allow" in headers:  # Starlette names the methods of one route of the path
            same = [route for route in app.routes if getattr(route, "path", None) == request.url.path]
            headers["Allow"] = ", ".join(sorted({one for route in same for one in route.methods}))  # type: ignore[attr-defined]
        return JSONResponse({"error": error.detail}, error.status_code, headers)

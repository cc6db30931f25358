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
from pbprompt.apps.serve import schemas
from pbprompt.apps.serve.fairness import Shares
from pbprompt.apps.serve.labelling import Labelling, add_labelling
from pbprompt.apps.serve.limits import Limits, Refused
from pbprompt.apps.serve.middleware import Metrics, Middleware
from pbprompt.apps.serve.protocol import SELDOM, GuardedProtocol
from pbprompt.apps.serve.samples import Tour, samples_of
from pbprompt.apps.serve.schemas import BUSY, KEY, UNUSABLE, documented
from pbprompt.apps.serve.service import Service, give_memory_back
from pbprompt.apps.serve.uploads import receive
from pbprompt.errors import InputError, NoNumberError, one_line
from pbprompt.model.decisions import TRAINED
from pbprompt.model.tuned import TunedModel

PAGE = ("index.html", "style.css", "app.js", "common.js")
LABEL_PAGE, TOUR_PAGE = ("label.html", "label.js"), ("tour.html", "tour.js")
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
# the page of `look` has its style and script inside; in a tour it is of the package's drawings alone
INLINE = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
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
    tour: Tour | None = None,
    photographs: Path | None = None,
) -> FastAPI:
    """The app that serves a model.

    With an API key, only the page, /docs, /openapi.json and /healthz are open. Without one, requests must be
    to an IP address, `localhost`, this machine's name or `host`. With `examples`, whoever may use it may
    teach it labelled images; with `shared_classes`, add classes and remove added ones for all. Without, a
    client sends its further classes with each request, and nothing of them is kept. With `labelling`, whoever
    may use it may label a folder's images at /label; `tour` adds a page that leads through it. `photographs`:
    the training photographs, which a model that compares patches, here or in the tour, may then show beside
    its answers.
    """
    limits = limits or Limits()
    metrics = Metrics()
    service = Service(model, limits, metrics, photographs, tour.comparing if tour else None)
    uploads = Shares(limits.held_bytes, "too much is being uploaded at once")

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
        **documented(UNUSABLE | BUSY | DAMAGED, schemas.Predict, form="files"),
    )
    async def predict(request: Request) -> schemas.Predictions:
        """Name what is in each image, with probabilities and their uncertainty."""
        async with receive(request, schemas.Predict, limits, uploads, form="files") as sent:
            return await service.predict(sent)

    explained = documented(UNUSABLE | BUSY | DAMAGED | {404: "unknown class"}, schemas.Explain, form="file")
    explained["responses"][200] = {"content": PNG}

    @app.post("/explain", response_model=schemas.Explanation, **explained)
    async def explain(request: Request) -> schemas.Explanation | Response:
        """Show where in an image the sampled prompts of a class look."""
        async with receive(request, schemas.Explain, limits, uploads, form="file") as sent:
            found = await service.explain(sent)
        return Response(found, media_type="image/png") if isinstance(found, bytes) else found

    @app.get("/classes", **documented(KEY))
    async def classes() -> schemas.Classes:
        """The classes the model tells apart."""
        now = service.model
        return schemas.Classes(
            classes=list(now.classes),
            added=service.added,
            calibrated=now.calibrated,
            class_mix=TRAINED if now.class_mix is None else now.class_mix,
            thresholds=now.thresholds or None,
        )

    @app.post("/classes", **documented(UNUSABLE | BUSY | UNSHARED | TAKEN, schemas.AddClasses))
    async def add_classes(request: Request) -> schemas.Classes:
        """Add classes by name for all clients, until the server stops."""
        async with receive(request, schemas.AddClasses, limits, uploads) as sent:
            check_shared()
            await service.add_classes(sent.names)
        return await classes()

    @app.delete("/classes", **documented(KEY | BUSY | UNSHARED | {409: "a class of the model's own"}))
    async def remove_class(name: str = "") -> schemas.Classes:
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
    async def samples() -> schemas.Samples:
        """Images to try it on: of the model's own data where they can be found."""
        return to_try

    if examples:

        @app.post("/examples", **documented(UNUSABLE | BUSY | TAKEN, schemas.Examples, form="files"))
        async def learn(request: Request) -> schemas.Classes:
            """Learn labelled images, until the server stops."""
            async with receive(request, schemas.Examples, limits, uploads, form="files") as sent:
                await service.learn(sent)
            return await classes()

    if labelling:
        add_labelling(app, service, labelling, limits, uploads)

    @app.get("/healthz")
    async def healthz() -> schemas.Health:
        """Whether the server works."""
        return schemas.Health(
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

    if tour:

        @app.get("/look", include_in_schema=False)
        async def look() -> HTMLResponse:
            return HTMLResponse(tour.look, headers={"Content-Security-Policy": INLINE})

    for name in (*PAGE, *(LABEL_PAGE if labelling else ()), *(TOUR_PAGE if tour else ())):
        _add_page(app, name)
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


def _add_page(app: FastAPI, name: str) -> None:
    """A web page or what it needs, read once: no request for it reaches the file system."""
    content = files("pbprompt.apps.serve").joinpath("page", name).read_bytes()
    path = "/" if name == "index.html" else f"/{name.removesuffix('.html')}"

    @app.get(path, include_in_schema=False)
    async def send() -> Response:
        return Response(content, media_type=TYPES[Path(name).suffix])


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

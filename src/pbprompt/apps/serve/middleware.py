"""Around every request: security headers, a look at the key, counting, and room for an early answer."""

import asyncio
import hmac
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pbprompt.apps.serve.fairness import asker, client_of

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
GUARDED = frozenset({"/predict", "/explain", "/classes", "/examples", "/metrics", "/samples"})
GUARDED |= {"/labelling", "/labelling/undo", "/labelling/image"}
HEADER_BYTES = 16 << 10  # refused with a reason; the protocol ends connections far above that
DRAIN_BYTES, DRAIN_SECONDS = 256 << 20, 10.0  # of a body that is not used, before it is answered
REFUSED_BYTES = 1 << 20


class Metrics:
    """What one app counts of itself, for Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.requests = counter("pbprompt_requests", "Requests answered.", ["endpoint", "status"])
        self.seconds = histogram("pbprompt_request_seconds", "Time to answer a request.", ["endpoint"])
        self.batches = histogram(
            "pbprompt_batch_images",
            "Images that went through the tower together.",
            buckets=(1, 2, 4, 8, 16, 32, 64),
        )
        self.waiting = gauge("pbprompt_waiting_images", "Images being read, decoded or computed.")
        self.examples = counter("pbprompt_examples", "Labelled images the model has learned.")
        self.classes = gauge("pbprompt_classes", "Classes the model tells apart.")
        self.answers = counter("pbprompt_answers", "Images answered, by their likeliest class.", ["label"])
        self.unsure = counter("pbprompt_unsure", "Images answered that were marked as unsure.")
        self.familiarity = histogram(
            "pbprompt_familiarity",
            "Share of the images at fit that look no more like the classes: even where nothing has changed.",
            buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1),
        )
        self.class_at_fit = gauge("pbprompt_class_at_fit", "Share of a class in answers at fit.", ["label"])
        self.unsure_at_fit = gauge("pbprompt_unsure_at_fit", "Share of unsure answers at fit.")

    def page(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self.registry)


class Middleware:
    """Wraps the app; `endpoints` are the paths that are counted by name."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        endpoints: frozenset[str],
        api_key: str | None,
        hosts: frozenset[str],
    ) -> None:
        self.app, self.metrics, self.endpoints, self.hosts = app, metrics, endpoints, hosts
        self.api_key = api_key.encode() if api_key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        asker.set((client_of(scope.get("client")), object()))
        started = time.perf_counter()
        endpoint = scope["path"] if scope["path"] in self.endpoints else "other"
        headers = Headers(scope=scope)
        refusal = self._refusal(scope["path"], headers)
        body = _Body(receive, headers, refused=refusal is not None)
        answering = False

        async def send_safely(message: Message) -> None:
            nonlocal answering
            answering = True
            if message["type"] == "http.response.start":
                await body.drain()
                own = MutableHeaders(scope=message)
                own.update(HEADERS | dict(own) | ({"Connection": "close"} if body.more else {}))
                self.metrics.requests.labels(endpoint, str(message["status"])).inc()
                self.metrics.seconds.labels(endpoint).observe(time.perf_counter() - started)
            await send(message)

        try:
            await (refusal or self.app)(scope, body.receive, send_safely)
        except Exception:  # its insides are for the log, not for the client
            logging.getLogger("pbprompt.apps.serve").exception("%s failed", endpoint)
            failed = JSONResponse({"error": "the server failed: its log says why"}, 500)
            if not answering:
                await failed(scope, body.receive, send_safely)

    def _refusal(self, path: str, headers: Headers) -> ASGIApp | None:
        if sum(len(name) + len(value) for name, value in headers.raw) > HEADER_BYTES:
            return JSONResponse({"error": f"the headers are longer than {HEADER_BYTES} bytes"}, 431)
        if path in GUARDED and _from_elsewhere(headers):
            return JSONResponse({"error": "another site's page may not use this server"}, 403)
        if self.api_key is None and not _names_us(headers.get("host", "localhost"), self.hosts):
            return JSONResponse({"error": "the Host header names another server"}, 421)
        if self.api_key is None or path not in GUARDED:
            return None
        if hmac.compare_digest(_given_key(headers).encode("latin-1"), self.api_key):
            return None
        reason = "send the API key as X-API-Key or as Authorization: Bearer"
        return JSONResponse({"error": reason}, 401, {"WWW-Authenticate": "Bearer"})


def _from_elsewhere(headers: Mapping[str, str]) -> bool:
    """Whether a page of another site, or of another port, asks."""
    if site := headers.get("sec-fetch-site"):
        return site not in ("same-origin", "none")
    origin = headers.get("origin")  # all that browsers send to plain HTTP that is not on their machine
    return origin is not None and origin.partition("://")[2] != headers.get("host")


def _names_us(host: str, hosts: frozenset[str]) -> bool:
    """Whether a Host header is an address or a name of ours: a page elsewhere whose name was made to lead
    here (DNS rebinding) sends its own. With a key there is no need: no such page knows it."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name in hosts or bool(ip_address(name))
    except ValueError:
        return False


def _given_key(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return headers.get("x-api-key", token.strip() if scheme.lower() == "bearer" else "")


class _Body:
    """A request's body. A client that still sends when it is answered may lose the answer with its
    connection, so the rest is read (and dropped) first, within bounds. Of a refused request that is a body
    which is said to be small; any other is not read, and the connection ends.
    """

    def __init__(self, receive: Receive, headers: Mapping[str, str], refused: bool) -> None:
        self._receive = receive
        declared, chunked = headers.get("content-length", "0"), "transfer-encoding" in headers
        self.more = chunked or declared != "0"
        small = not chunked and len(declared) < 10 and int(declared) <= REFUSED_BYTES
        self._most = 0 if "expect" in headers or (refused and not small) else DRAIN_BYTES

    async def receive(self) -> Message:
        message = await self._receive()
        self.more = message["type"] == "http.request" and message.get("more_body", False)
        return message

    async def drain(self) -> None:
        dropped = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while self.more and dropped < self._most:
                    dropped += len((await self.receive()).get("body", b""))

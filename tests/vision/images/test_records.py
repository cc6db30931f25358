"""Images from addresses, of a server in this process."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pbprompt.errors import InputError
from pbprompt.vision.images import records as module
from pbprompt.vision.images.locations import is_address
from pbprompt.vision.images.records import download


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.startswith("/to?"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to?"))
            self.end_headers()
        elif self.path == "/image":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"picture" * 100)
        elif self.path == "/short":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"picture" * 100)
        else:
            self.send_error(404)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


def test_the_content_comes(address):
    assert download(f"{address}/image") == b"picture" * 100
    assert download(f"{address}/to?/image") == b"picture" * 100


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/to?file:///etc/passwd", "leads on to file|is not allowed"),
        ("/to?ftp://127.0.0.1/x", "leads on to ftp"),
        ("/to?/to?/to?/to?/to?/to?/to?/image", "redirect"),
        ("/none", "Not Found"),
        ("/short", "cut off, 300 bytes are missing"),
    ],
)
def test_what_is_refused_is_told(address, path, says):
    with pytest.raises(InputError, match=says) as error:
        download(address + path)
    assert "cannot read image http" in str(error.value)


def test_https_never_leads_on_to_http():
    handler = module._Redirects()
    request = module.request.Request("https://there/image")
    with pytest.raises(InputError, match="leads on to http, which is refused"):
        handler.redirect_request(request, None, 302, "", {}, "http://there/image")
    assert handler.redirect_request(request, None, 302, "", {}, "https://here/image").full_url


@pytest.mark.parametrize("name", ["file:///etc/passwd", "ftp://there/x", "data://x"])
def test_other_schemes_are_never_opened(name):
    assert is_address(name)
    with pytest.raises(InputError, match="only http and https"):
        download(name)


def test_size_and_time_are_limited(address, monkeypatch):
    monkeypatch.setattr(module, "MOST_SECONDS", -1.0)
    with pytest.raises(InputError, match="not there after"):
        download(f"{address}/image")
    monkeypatch.setattr(module, "MOST_WEB_BYTES", 500)
    with pytest.raises(InputError, match="larger than"):
        download(f"{address}/image")


def test_paths_are_no_addresses():
    assert not any(map(is_address, ("a.jpg", "C:\\photos", "-", "in/*.jpg", "a:b")))

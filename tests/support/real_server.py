"""A real server for a test, on a free port, and a client that asks it over a socket."""

import threading
import time
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.testclient import httpx

from pbprompt.apps.serve.app import server_config


class RealServer:
    """Runs an app for as long as the block lasts; gives a client, whose requests name the host of `url`."""

    def __init__(self, app: Any, url: str = "http://localhost", proxy: str | None = None) -> None:
        self.server = uvicorn.Server(server_config(app, "127.0.0.1", 0, proxy))
        self.host = urlsplit(url).netloc

    def start(self) -> str:
        """The address."""
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        return f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join()

    def __enter__(self) -> Any:
        address = self.start()
        self.client = httpx.Client(base_url=address, headers={"host": self.host}, timeout=60, trust_env=False)
        return self.client

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.stop()

"""Fairness between clients: whoever asks for much waits behind itself, not before others.

A client is an address, or the network of an IPv6 one, whose holder has all its addresses. Behind a proxy all
clients are one, and only their requests take turns.
"""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from ipaddress import ip_address, ip_network
from typing import Generic, TypeVar

from pbprompt.apps.serve.limits import Refused

Item = TypeVar("Item")

# whose work is at hand: a client's, for one of its requests
asker: ContextVar[tuple[str, object]] = ContextVar("asker", default=("", None))


def client_of(address: tuple[str, int] | None) -> str:
    """By which a connection's client is known."""
    host = address[0] if address else ""
    try:
        return str(ip_network(f"{host}/64", strict=False)) if ip_address(host).version == 6 else host
    except ValueError:  # no address: a socket of this machine
        return host


class Shares:
    """So much of something for all, and for each client no more than is left for others.

    One alone can have half, two a third each: however much some hold, there is room for one who comes anew.
    """

    def __init__(self, limit: int, what: str) -> None:
        self.limit, self._what = limit, what
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        return self._held.total()

    def take(self, count: int) -> None:
        client, _ = asker.get()
        if self._held[client] + count > self.limit - self.held:
            reason = f"the server is busy: {self._what.format(self.held)}: try again"
            raise Refused(429, reason, retry_after=1)
        self._held[client] += count

    def give_back(self, count: int) -> None:
        client, _ = asker.get()
        self._held -= Counter({client: count})  # which forgets who holds nothing

    @contextmanager
    def taken(self, count: int) -> Iterator[None]:
        """For as long as the block lasts."""
        self.take(count)
        try:
            yield
        finally:
            self.give_back(count)


class Rota(Generic[Item]):
    """A line in which clients take turns, and so do the requests of each."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, OrderedDict[object, deque[Item]]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._clients)

    def add(self, client: str, request: object, item: Item) -> None:
        self._clients.setdefault(client, OrderedDict()).setdefault(request, deque()).append(item)

    def pop(self) -> Item:
        """Of the next client's next request; both go to the end of their lines."""
        client, requests = self._clients.popitem(last=False)
        request, items = requests.popitem(last=False)
        item = items.popleft()
        if items:
            requests[request] = items
        if requests:
            self._clients[client] = requests
        return item


class Turns:
    """So many at once; the others wait in a rota."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: Rota[asyncio.Future[None]] = Rota()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        if self._free:
            self._free -= 1
        else:
            mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(*asker.get(), mine)
            try:
                await mine
            except asyncio.CancelledError:
                if not mine.cancelled():  # it was given its turn at the same moment
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            turn = self._waiting.pop()
            if not turn.done():  # who gave up waiting has cancelled it
                turn.set_result(None)
                return
        self._free += 1

"""Whoever asks for much waits behind itself, not before others."""

import asyncio

import pytest

from pbprompt.apps.serve.fairness import Shares, Turns, asker, client_of
from pbprompt.apps.serve.limits import Refused


def as_client(name: str, request: object = 1) -> None:
    asker.set((name, request))


def order_of(asked: list[tuple[str, int]], at_once: int = 1) -> list[tuple[str, int]]:
    """In which order those who come one after another get their turn."""
    turns, begun = Turns(at_once), []

    async def one(who: tuple[str, int]) -> None:
        asker.set(who)
        async with turns.turn():
            begun.append(who)
            await asyncio.sleep(0)

    async def all_() -> None:
        await asyncio.gather(*(asyncio.create_task(one(who)) for who in asked))

    asyncio.run(all_())
    return begun


def test_clients_take_turns_and_so_do_their_requests():
    many = [("a", 1)] * 4 + [("a", 2)] * 2 + [("b", 1)] * 2
    assert order_of(many) == [
        ("a", 1), ("a", 1), ("b", 1), ("a", 2), ("b", 1), ("a", 1), ("a", 2), ("a", 1),
    ]  # fmt: skip
    assert sorted(order_of(many, at_once=3)) == sorted(many)


def test_who_gives_up_leaves_the_turn_to_others():
    async def run() -> list[str]:
        turns, begun = Turns(1), []

        async def one(name: str) -> None:
            async with turns.turn():
                begun.append(name)

        async with turns.turn():
            waiting = [asyncio.create_task(one(name)) for name in "abc"]
            await asyncio.sleep(0)
            waiting[0].cancel()
        waiting[1].cancel()  # it has its turn by now, and has not taken it
        await asyncio.gather(*waiting, return_exceptions=True)
        async with asyncio.timeout(5), turns.turn():
            return begun

    assert asyncio.run(run()) == ["c"]


def test_one_client_leaves_room_for_another():
    room = Shares(8, "{} wait")
    as_client("a")
    room.take(3)
    room.take(1)
    with pytest.raises(Refused, match="4 wait") as refused:
        room.take(1)
    assert refused.value.status == 429 and refused.value.headers == {"Retry-After": "1"}
    as_client("b")
    with room.taken(2):
        assert room.held == 6
        with pytest.raises(Refused):
            room.take(1)
        as_client("c")
        room.take(1)
        room.give_back(1)
        as_client("b")
    as_client("a")
    room.give_back(4)
    assert room.held == 0 and not room._held


def test_one_request_alone_may_have_all():
    room = Shares(32, "full")
    with room.taken(32):
        pass
    with pytest.raises(Refused):
        room.take(33)


def test_all_addresses_of_a_network_are_one_client():
    assert client_of(("10.0.0.1", 5)) == "10.0.0.1" and client_of(None) == ""
    assert (
        client_of(("2001:db8::1", 5)) == client_of(("2001:db8::ffff:2", 6)) != client_of(("2001:db9::1", 5))
    )
    assert client_of(("testclient", 5)) == "testclient"


def test_many_huge_images_of_one_do_not_stop_a_small_one_of_another(service, monkeypatch):
    """Each decoder is busy with one of the 32 at most when the small one comes."""
    asked: list[str] = []

    def ask(decode, data, *_):
        asked.append(data)
        return data

    monkeypatch.setattr(service._decoders, "ask", ask)

    async def run() -> None:
        async def client(name: str, images: int) -> None:
            as_client(name)
            await asyncio.gather(*(service._decode(None, name) for _ in range(images)))

        huge = asyncio.create_task(client("huge", 32))
        await asyncio.sleep(0)
        await asyncio.gather(huge, asyncio.create_task(client("small", 1)))

    asyncio.run(run())
    assert len(asked) == 33 and asked.index("small") <= 2 * service._decoders.count

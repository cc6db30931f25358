"""The queue before the model."""

import asyncio
import threading

import pytest

from pbprompt.apps.serve.batching import Batcher
from pbprompt.apps.serve.limits import Refused, in_time


def make(run, **options) -> Batcher:
    return Batcher(run, **{"batch": 4, "gather_seconds": 0.2} | options)


def test_items_of_many_requests_share_batches_and_each_gets_its_own_result():
    batches = []

    def run(items):
        batches.append(list(items))
        return [-item for item in items]

    batcher = make(run)

    async def ask():
        return await asyncio.gather(*(batcher.submit([n, n + 100]) for n in range(6)))

    answers = asyncio.run(ask())
    batcher.close()
    assert answers == [[-n, -n - 100] for n in range(6)]
    assert [len(batch) for batch in batches] == [4, 4, 4]


def test_nobody_is_waited_for_who_is_not_expected():
    batcher = make(lambda items: items, gather_seconds=3600, expected=lambda: 1)
    assert asyncio.run(batcher.submit(["alone"])) == ["alone"]
    batcher.close()


def test_a_failure_reaches_its_batch_only():
    def run(items):
        if "bad" in items:
            raise RuntimeError("no")
        return items

    batcher = make(run, gather_seconds=0)

    async def ask():
        with pytest.raises(RuntimeError):
            await batcher.submit(["bad"])
        return await batcher.submit(["good"])

    assert asyncio.run(ask()) == ["good"]
    batcher.close()


def test_a_late_answer_is_a_503_and_its_waiting_work_is_dropped():
    go_on, seen = threading.Event(), []

    def run(items):
        go_on.wait()
        seen.extend(items)
        return items

    batcher = make(run, batch=1)

    async def ask():
        first = asyncio.create_task(batcher.submit(["first"]))
        await asyncio.sleep(0.05)
        try:
            with pytest.raises(Refused) as refused:
                async with in_time(0.05):
                    await batcher.submit(["late"])
            assert refused.value.status == 503
        finally:
            go_on.set()
        return await first

    assert asyncio.run(ask()) == ["first"]
    batcher.close()
    assert seen == ["first"]


def test_closing_answers_what_waits_and_takes_no_more():
    batcher = make(lambda items: items, gather_seconds=0)

    async def ask():
        waiting = asyncio.create_task(batcher.submit(list(range(8))))
        for _ in range(3):  # they get in line
            await asyncio.sleep(0)
        await asyncio.to_thread(batcher.close)
        answer = await waiting
        with pytest.raises(Refused) as refused:
            await batcher.submit([1])
        return answer, refused.value.status

    assert asyncio.run(ask()) == (list(range(8)), 503)

"""Steps: the same commands for a plain and for an asyncio client."""

from __future__ import annotations

import asyncio

import pytest

from conquiet.queue.steps import Steps, command, run_steps, run_steps_async


def double(start: int) -> Steps[int]:
    first = yield command("ECHO", start)
    second = yield command("ECHO", first + 1)
    return first + second


def recover() -> Steps[str]:
    try:
        yield command("FAIL")
    except ValueError as error:
        return f"met {error}"
    return "met nothing"


def fail_or_echo(name: str, value: int = 0) -> int:
    if name == "FAIL":
        raise ValueError("no")
    return value


async def fail_or_echo_async(name: str, value: int = 0) -> int:
    return fail_or_echo(name, value)


def test_replies_are_sent_back_in_order():
    assert run_steps(fail_or_echo, double(3)) == 7
    assert asyncio.run(run_steps_async(fail_or_echo_async, double(3))) == 7


def test_an_error_is_raised_where_its_command_was_yielded():
    assert run_steps(fail_or_echo, recover()) == "met no"
    assert asyncio.run(run_steps_async(fail_or_echo_async, recover())) == "met no"


def test_a_cancellation_that_the_client_swallowed_ends_the_steps():
    async def swallow(*_parts: object) -> int:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return 1
        return 0

    async def cancelled() -> None:
        task = asyncio.create_task(run_steps_async(swallow, double(3)))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())

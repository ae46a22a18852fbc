"""Pipes over a stream: what an external process reports arrives, even if it is killed."""

# No `from __future__ import annotations` here: Dagster reads the types of the functions.
import signal
import sys
import textwrap
from contextlib import suppress
from typing import Any

import dagster as dg
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from conquiet.queue.member import entries_of
from dagster_conquiet import (
    PipesMessagesLostError,
    RedisStreamMessageReader,
    RedisStreamMessageWriter,
    RedisStreamsResource,
)
from dagster_conquiet.pipes.writer import RedisStreamMessageChannel
from tests.eventually import eventually
from tests.services import free_port

#: The external process knows dagster-pipes and conquiet; Dagster itself is not to be had.
PROGRAM = """
import os, signal, sys
sys.modules["dagster"] = None

from dagster_pipes import open_dagster_pipes
from dagster_conquiet import RedisStreamMessageWriter

with open_dagster_pipes(message_writer=RedisStreamMessageWriter()) as pipes:
    pipes.log.info("begun")
    pipes.report_custom_message({"rows": 3})
    %s
    pipes.report_asset_materialization(metadata={"rows": 3}, data_version="v7")
"""


@pytest.fixture
def program(tmp_path):
    """Writes the external process, with some lines in its middle."""

    def write(in_the_middle: str = "pass") -> list[str]:
        path = tmp_path / "external.py"
        path.write_text(PROGRAM % textwrap.indent(in_the_middle, " " * 4).strip())
        return [sys.executable, str(path)]

    return write


@pytest.fixture
def reader(resources, server_url):
    return RedisStreamMessageReader(resources["redis_streams"], writer_url=server_url, prefix="test-pipes")


@pytest.fixture
def launch(reader, instance):
    """Materialises an asset that launches the command; the result, the custom messages, the log's text."""

    def run(command, **options):
        seen: list[Any] = []

        @dg.asset
        def external(context: dg.AssetExecutionContext, pipes: dg.PipesSubprocessClient):
            call = pipes.run(command=command, context=context, **options)
            seen.extend(call.get_custom_messages())
            return call.get_results()

        client = dg.PipesSubprocessClient(message_reader=reader)
        result = dg.materialize(
            [external], resources={"pipes": client}, instance=instance, raise_on_error=False
        )
        logs = " ".join(entry.user_message for entry in instance.all_logs(result.run_id))
        return result, seen, logs

    return run


def test_materialisations_logs_and_custom_messages_arrive(launch, program, client):
    result, custom, logs = launch(program())

    assert result.success
    assert result.asset_materializations_for_node("external")[0].metadata["rows"].value == 3
    assert custom == [{"rows": 3}]
    assert "begun" in logs
    assert not client.keys("test-pipes:*")


def test_what_a_killed_process_wrote_before_is_read_and_its_stream_is_deleted(launch, program, client):
    result, _, logs = launch(program("os.kill(os.getpid(), signal.SIGKILL)"))

    assert not result.success
    assert "begun" in logs
    failure = result.get_step_failure_events()[0].step_failure_data
    assert f"code {-signal.SIGKILL}" in failure.error.to_string()
    assert not client.keys("test-pipes:*")


def test_an_exception_of_the_process_is_told(launch, program):
    result, _, logs = launch(program("raise RuntimeError('the disk is full')"))

    assert not result.success
    assert "external process pipes closed with exception" in logs


@pytest.mark.parametrize("options", ["?protocol=3", "?decode_responses=true"])
def test_the_reader_reads_in_whatever_form_its_client_is_told_to_answer(server_url, options):
    reader = RedisStreamMessageReader(RedisStreamsResource(url=server_url + options))
    handled = Handled()

    with reader.read_messages(handled) as params, open_writer(server_url, params) as channel:
        channel.write_message({"method": "log", "n": 1})
        channel.write_message({"method": "closed", "n": 2})

    assert [message["n"] for message in handled.messages] == [1, 2]


def test_large_messages_are_read_a_few_at_a_time(server_url, monkeypatch):
    reader = RedisStreamMessageReader(RedisStreamsResource(url=server_url))
    handled = Handled()
    pages: list[int] = []

    def note(reply: Any) -> Any:
        entries = entries_of(reply)
        pages.append(len(entries))
        return entries

    monkeypatch.setattr("dagster_conquiet.pipes.reader.entries_of", note)

    with reader.read_messages(handled) as params, open_writer(server_url, params) as channel:
        for n in range(30):
            channel.write_message({"method": "log", "n": n, "text": "x" * (1 << 20)})
        channel.write_message({"method": "closed", "n": 30})

    assert [message["n"] for message in handled.messages] == [*range(31)]
    assert max(pages) <= 10


def open_writer(url, params):
    return RedisStreamMessageWriter(url).open(params)


def test_a_malformed_entry_stops_nothing_and_the_step_is_red(server_url, client):
    reader = RedisStreamMessageReader(RedisStreamsResource(url=server_url))
    handled = Handled()

    def launch_with_garbage() -> None:
        with reader.read_messages(handled) as params, open_writer(server_url, params) as channel:
            channel.write_message({"method": "log", "n": 1})
            client.xadd(params["conquiet_stream"], {"data": b"\xff not JSON"})
            client.xadd(params["conquiet_stream"], {"other": "field"})
            client.xadd(params["conquiet_stream"], {"data": "[1]"})
            channel.write_message({"method": "refused", "n": 2})
            channel.write_message({"method": "closed", "n": 3})

    with pytest.raises(PipesMessagesLostError) as caught:
        launch_with_garbage()

    assert [message["n"] for message in handled.messages] == [1, 3]
    problems = " ".join(caught.value.problems)
    assert (problems.count("is malformed"), problems.count("was refused: ValueError")) == (3, 1)


def test_messages_that_are_missing_are_missed(server_url, client):
    reader = RedisStreamMessageReader(RedisStreamsResource(url=server_url))
    handled = Handled()

    def launch_and_lose() -> None:
        with reader.read_messages(handled) as params, open_writer(server_url, params) as channel:
            channel.write_message({"method": "log", "n": 1})
            eventually(lambda: handled.messages)
            # Both at once: the reader sees nothing in between.
            channel._number += 2
            channel.write_message({"method": "closed", "n": 4})

    with pytest.raises(PipesMessagesLostError, match="messages 2 to 3 are missing"):
        launch_and_lose()


def test_a_process_that_ends_well_without_closing_is_red(launch, program):
    result, _, _ = launch(program("os._exit(0)"))

    assert not result.success
    failure = result.get_step_failure_events()[0].step_failure_data
    assert "the process ended without closing" in failure.error.to_string()


def report_of(number: int) -> list[dict[str, Any]]:
    """What one process writes."""
    return [{"method": method, "n": number} for method in ("opened", "log", "closed")]


def test_what_a_second_process_of_a_launch_reports_after_the_first_one_has_closed_arrives(server_url):
    reader = RedisStreamMessageReader(RedisStreamsResource(url=server_url))
    handled = Handled()

    with reader.read_messages(handled) as params:
        for number in (1, 2):
            with open_writer(server_url, params) as channel:
                for message in report_of(number):
                    channel.write_message(message)
            eventually(lambda: handled.received_closed_message)

    assert handled.messages == report_of(1) + report_of(2)


def test_a_second_process_of_a_launch_that_does_not_close_is_red_and_one_that_was_replaced_is_not(server_url):
    reader = RedisStreamMessageReader(RedisStreamsResource(url=server_url))

    def launch(*processes: list[dict[str, Any]]) -> None:
        with reader.read_messages(Handled()) as params:
            for messages in processes:
                with open_writer(server_url, params) as channel:
                    for message in messages:
                        channel.write_message(message)

    launch(report_of(1)[:2], report_of(2))
    with pytest.raises(PipesMessagesLostError, match="ended without closing"):
        launch(report_of(1), report_of(2)[:2])


def test_connections_that_break_lose_nothing_and_repeat_nothing(server_url, client):
    reader = RedisStreamMessageReader(RedisStreamsResource(url=f"{server_url}?client_name=pipes-reader"))
    handled = Handled()

    writer_url = f"{server_url}?client_name=pipes-writer"
    with reader.read_messages(handled) as params, open_writer(writer_url, params) as channel:
        for n in range(20):
            channel.write_message({"method": "log", "n": n})
            if n % 5 == 0:
                ours = [row["id"] for row in client.client_list() if row["name"].startswith("pipes-")]
                for name in ours:
                    client.execute_command("CLIENT", "KILL", "ID", name)
        channel.write_message({"method": "closed", "n": 20})

    assert [message["n"] for message in handled.messages] == [*range(21)]


def test_a_message_whose_reply_was_lost_is_written_again_and_read_once(server_url, monkeypatch):
    reader = RedisStreamMessageReader(RedisStreamsResource(url=server_url))
    handled = Handled()
    add: Any = RedisStreamMessageChannel._add
    lost: list[Any] = []

    def lose_the_reply(channel, fields) -> None:
        add(channel, fields)
        if not lost:
            lost.append(fields)
            raise RedisConnectionError("the reply was lost")

    monkeypatch.setattr(RedisStreamMessageChannel, "_add", lose_the_reply)
    with reader.read_messages(handled) as params, open_writer(server_url, params) as channel:
        channel.write_message({"method": "log", "n": 1})
        channel.write_message({"method": "closed", "n": 2})

    assert lost
    assert [message["n"] for message in handled.messages] == [1, 2]


class Handled:
    """Keeps what a reader hands over."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    @property
    def received_closed_message(self) -> bool:
        return any(message["method"] == "closed" for message in self.messages)

    def handle_message(self, message) -> None:
        if message["method"] == "refused":
            raise ValueError("unknown method")
        self.messages.append(message)

    def report_pipes_framework_exception(self, origin, exc_info) -> None:
        raise AssertionError(origin) from exc_info[1]


def test_many_messages_arrive_in_order(launch, program):
    _, custom, _ = launch(program("for n in range(2_000): pipes.report_custom_message(n)"))

    assert custom == [{"rows": 3}, *range(2_000)]


def test_a_process_of_which_nothing_came_is_red(launch, client):
    # As of one that wrote to another server: what it reported is lost.
    result, _, _ = launch([sys.executable, "-c", "pass"])

    failure = result.get_step_failure_events()[0].step_failure_data
    assert not result.success
    assert "nothing came at all" in failure.error.to_string()
    assert not client.keys("test-pipes:*")


def test_both_sides_wait_as_long_for_a_server_that_is_unavailable(resources, server_url):
    reader = RedisStreamMessageReader(resources["redis_streams"], reconnect_s=0.3)

    with reader.read_messages(Handled()) as params:
        assert params["conquiet_reconnect_s"] == 0.3
        with open_writer(server_url, params) as channel:
            channel.write_message({"method": "closed"})
        nowhere = f"redis://127.0.0.1:{free_port()}"
        with open_writer(nowhere, params) as channel, pytest.raises(RedisConnectionError):
            channel.write_message({"method": "log"})


def test_a_writer_that_knows_no_server_says_what_to_do(resources, program, instance, monkeypatch, capfd):
    monkeypatch.delenv("CONQUIET_REDIS_URL", raising=False)
    silent = RedisStreamMessageReader(resources["redis_streams"], prefix="test-pipes")

    @dg.asset
    def external(context: dg.AssetExecutionContext):
        client = dg.PipesSubprocessClient(message_reader=silent)
        return client.run(command=program(), context=context).get_results()

    result = dg.materialize([external], instance=instance, raise_on_error=False)

    assert not result.success
    assert "does not know the server: give it a url" in capfd.readouterr().err


def test_no_password_is_sent_unless_asked_for(resources):
    reader = RedisStreamMessageReader(resources["redis_streams"])

    with suppress(PipesMessagesLostError), reader.read_messages(Handled()) as params:
        sent = dict(params)

    assert "url" not in "".join(sent)
    assert resources["redis_streams"].url not in str(sent)

"""Logs of the library and of handlers: each line about a message names it, as text or as JSON."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys

import pytest

from conquiet import DeadLetter, DrainError, DrainLimits, drain
from conquiet.logs import FIELDS, JsonFormatter, MessageFilter, about
from conquiet.masking import remember_secret
from tests.spans import trace_of


@pytest.fixture(scope="session")
def server_url(valkey_url):
    """One kind of server: logs are written on our side."""
    return valkey_url


@pytest.fixture
def lines():
    """What is logged during the test, as parsed JSON lines."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.removeHandler(handler)


def fail(_msg, _session):
    raise ValueError("no such customer: password=hunter2-hunter2")


def test_the_line_of_a_failed_message_names_it(queue, engine, lines, stream, spans):
    entry_id = queue.enqueue({"n": 1})

    with pytest.raises(ValueError, match="no such customer"):
        drain(queue, fail, engine, DrainLimits(max_messages=10, idle_ms=20, on_error="raise"))

    (line,) = [line for line in lines() if line["logger"] == "conquiet.consume.conclusions"]
    assert {name: line[name] for name in ("level", "stream", "group", "message_id", "consumer")} == {
        "level": "warning",
        "stream": stream,
        "group": "billing",
        "message_id": entry_id,
        "consumer": "worker-1",
    }
    assert (
        line["message"]
        == f"entry {entry_id} of stream '{stream}' for group 'billing' failed at attempt 1 and stays pending"
    )
    assert line["trace_id"] == trace_of(spans.one("process"))
    assert line["time"].endswith("+00:00")
    assert "ValueError: no such customer" in line["exception"]
    assert "hunter2" not in json.dumps(line)


def test_without_tracing_the_line_is_the_same_but_for_the_trace(queue, engine, lines):
    entry_id = queue.enqueue({"n": 1})

    with pytest.raises(ValueError, match="no such customer"):
        drain(queue, fail, engine, DrainLimits(max_messages=10, idle_ms=20, on_error="raise"))

    (line,) = [line for line in lines() if line["logger"] == "conquiet.consume.conclusions"]
    assert line["message_id"] == entry_id
    assert "trace_id" not in line


def test_what_a_handler_logs_names_its_message_and_nothing_does_after_it(queue, engine, lines, stream, spans):
    entry_id = queue.enqueue({"n": 1})
    log = logging.getLogger("shop")

    def handle(_msg, _session):
        log.warning("charged %s", "card", extra={"amount": 12, "order": {"url": "redis://u:pa55w0rd@h"}})

    drain(queue, handle, engine, DrainLimits(max_messages=10, idle_ms=20))
    log.warning("afterwards")

    inside, after = lines()
    assert (inside["message"], inside["amount"]) == ("charged card", 12)
    assert (inside["stream"], inside["message_id"], inside["consumer"]) == (stream, entry_id, "worker-1")
    assert inside["trace_id"] == trace_of(spans.one("process"))
    assert inside["order"] == {"url": "redis://u:***@h"}
    assert set(after) == {"time", "level", "logger", "message"}


@pytest.fixture
def record_factory():
    """Sets the application's own factory of log records for the length of the test."""
    before = logging.getLogRecordFactory()

    def with_attributes(**attributes):
        def make(*args, **kwargs):
            record = before(*args, **kwargs)
            vars(record).update(attributes)
            return record

        logging.setLogRecordFactory(make)

    yield with_attributes
    logging.setLogRecordFactory(before)


def fail_the_first(msg, _session):
    if msg.payload["n"] == 1:
        raise ValueError("no such customer")


def test_an_application_may_give_its_records_any_of_our_names(queue, engine, lines, stream, record_factory):
    record_factory(**dict.fromkeys(FIELDS, "the application's"))
    entry_id = queue.enqueue_many([{"n": 1}, {"n": 2}])[0]

    with pytest.raises(DrainError) as raised:
        drain(queue, fail_the_first, engine, DrainLimits(max_messages=10, idle_ms=20, on_error="continue"))

    assert raised.value.report.handled == 1
    (line,) = [line for line in lines() if line["logger"] == "conquiet.consume.conclusions"]
    assert (line["stream"], line["message_id"]) == (stream, entry_id)
    assert line["trace_id"] == "the application's"
    assert "conquiet" not in line


def test_a_log_that_cannot_be_written_decides_about_no_message(queue, engine, capsys):
    def refuse(_record):
        raise RuntimeError("the filter is broken")

    log = logging.getLogger("conquiet.consume.conclusions")
    log.addFilter(refuse)
    queue.enqueue_many([{"n": 1}, {"n": 2}])

    with pytest.raises(DrainError) as raised:
        drain(queue, fail_the_first, engine, DrainLimits(max_messages=10, idle_ms=20, on_error="continue"))

    log.removeFilter(refuse)
    assert (raised.value.report.handled, raised.value.report.failed) == (1, 1)
    assert "RuntimeError: the filter is broken" in capsys.readouterr().err


def test_a_line_of_ours_names_the_place_that_logged_it(queue, engine, caplog):
    queue.enqueue({"n": 1})

    with pytest.raises(ValueError, match="no such customer"):
        drain(queue, fail, engine, DrainLimits(max_messages=10, idle_ms=20, on_error="raise"))

    (record,) = [record for record in caplog.records if record.name == "conquiet.consume.conclusions"]
    assert (record.module, record.funcName) == ("conclusions", "_log_failure")


def test_the_filter_gives_the_fields_of_our_own_lines_too(queue, engine):
    entry_id = queue.enqueue({"n": 1})
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.addFilter(MessageFilter())
    handler.setFormatter(logging.Formatter("%(group)s %(message_id)s %(topic)s"))
    log = logging.getLogger("conquiet.consume.conclusions")
    log.addHandler(handler)

    with pytest.raises(ValueError, match="no such customer"):
        drain(queue, fail, engine, DrainLimits(max_messages=10, idle_ms=20, on_error="raise"))

    log.removeHandler(handler)
    assert written.getvalue().startswith(f"billing {entry_id} None\n")


def test_the_filter_gives_the_fields_to_any_format(queue):
    queue.enqueue({"n": 1})
    (msg,) = queue.read(50)
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.addFilter(MessageFilter())
    handler.setFormatter(logging.Formatter("%(group)s %(message_id)s %(consumer)s: %(message)s"))
    log = logging.getLogger("shop.filtered")
    log.addHandler(handler)

    with about(msg, "worker-1"):
        log.warning("inside")
    log.warning("outside")

    log.removeHandler(handler)
    assert written.getvalue() == f"billing {msg.id} worker-1: inside\nNone None None: outside\n"


def test_a_value_that_is_no_json_is_told_as_text_without_secrets(lines):
    remember_secret("kn0wn-s3cret")

    class Thing:
        def __str__(self):
            return "a thing with kn0wn-s3cret"

    logging.getLogger("shop").warning("here", extra={"thing": Thing()}, stack_info=True)

    (line,) = lines()
    assert line["thing"] == "a thing with ***"
    assert "in test_a_value" in line["stack"]


def test_the_library_configures_no_logger():
    code = (
        "import logging, conquiet, conquiet.mq; conquiet.drain; root = logging.getLogger(); "
        "print(root.handlers, root.level, logging.getLogger('conquiet').handlers)"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout.strip() == "[] 30 []"


def test_a_dead_letter_without_an_error_is_logged_with_its_reason(queue, engine, caplog):
    queue.enqueue({"n": 1})

    drain(queue, lambda _msg, _session: DeadLetter("no such customer"), engine, DrainLimits(idle_ms=20))

    (record,) = [record for record in caplog.records if record.name == "conquiet.consume.conclusions"]
    assert record.getMessage().endswith(
        "failed at attempt 1 and becomes a dead letter (DeadLetter: no such customer)"
    )

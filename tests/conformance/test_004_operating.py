"""Document 004, sentence by sentence: limits, adapters, configuration, security, observability, risks."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import uuid
from collections.abc import Iterator
from inspect import getmembers, isfunction
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

import conquiet.tasks
import conquiet.testing
from conquiet.db import DbSession
from conquiet.logs import JsonFormatter
from conquiet.settings import Settings
from conquiet.tasks import (
    Bucket,
    ProcessWorker,
    Rate,
    TaskApp,
    TaskContext,
    TaskFailedError,
    Worker,
    WorkerConfig,
    chord,
    scripts,
)
from conquiet.tasks.keys import GROUP_SHARD
from conquiet.tasks.security import Encryption, HmacKey, Signing
from tests.cli.processes import running
from tests.eventually import eventually
from tests.spans import Spans, trace_of
from tests.tls import tls_server
from tests.with_redis.tasks import process_app
from tests.with_redis.tasks.conftest import QUICK, StartWorker
from tests.with_redis.tasks.test_limits import spin

PATIENCE_S = 600.0
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def server_url(valkey_url: str) -> str:
    """One kind of server: what is tested here is on our side of it."""
    return valkey_url


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What is logged during the test, from info on, as JSON."""
    written: list[str] = []

    class Collected(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(self.format(record))

    handler, log = Collected(logging.INFO), logging.getLogger()
    handler.setFormatter(JsonFormatter())
    log.addHandler(handler)
    level = log.level
    log.setLevel(logging.INFO)
    yield written
    log.setLevel(level)
    log.removeHandler(handler)


def page(name: str) -> str:
    """A page of the documentation, without its line breaks."""
    return " ".join((ROOT / "docs" / name).read_text().split())


def alerts() -> dict[str, Any]:
    groups = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


# Executive summary


def test_summary_a_cli_first_operator_surface(run_help: dict[str, str]) -> None:
    for command in ("worker", "beat", "tasks", "workers", "queues", "schedule", "doctor"):
        assert re.search(rf"\b{command}\b", run_help["conquiet"]), command
    for command in ("enqueue", "list", "show", "result", "revoke", "retry"):
        assert re.search(rf"\b{command}\b", run_help["conquiet tasks"]), command
    for command in ("list", "ping", "pause", "resume", "stop"):
        assert re.search(rf"\b{command}\b", run_help["conquiet workers"]), command
    for command in ("list", "show", "apply", "delete", "enable", "disable", "next", "dry-run"):
        assert re.search(rf"\b{command}\b", run_help["conquiet schedule"]), command


@pytest.fixture(scope="session")
def run_help() -> dict[str, str]:
    """The help of commands, as they print it."""
    texts = {}
    for command in ("conquiet", "conquiet tasks", "conquiet workers", "conquiet schedule"):
        with running(*command.split()[1:], "--help", COLUMNS="200") as process:
            texts[command], _ = process.communicate(timeout=PATIENCE_S)
    return texts


# Goals


def test_goal_a_clear_public_contract_for_adapters_and_middleware() -> None:
    suites = {name.removesuffix("Contract") for name in conquiet.testing.__all__ if name.endswith("Contract")}

    assert suites == {"Middleware", "PayloadStore", "RateLimiter", "ResultStore", "ScheduleStore"}
    for name in suites:
        protocol = getattr(conquiet.tasks, name)
        methods = [method for key, method in getmembers(protocol, isfunction) if not key.startswith("_")]
        assert protocol.__doc__, name
        assert methods, name
        assert all(method.__doc__ for method in methods), name
        assert f"`{name}Contract`" in page("tasks.md")


# System overview


def test_overview_the_worker_executes_in_isolates_renews_leases_and_updates_the_backend(
    valkey_url: str,
) -> None:
    # An isolate of Dart is a process here.
    queue = f"q-{uuid.uuid4().hex[:10]}"
    process_app.app.use_server(valkey_url)
    config = WorkerConfig(queues=(queue,), concurrency=1, heartbeat_ttl_s=4)
    with ProcessWorker(f"{process_app.__name__}:app", config, url=valkey_url):
        handle = process_app.process_id.with_options(queue=queue).enqueue()
        process, _ = handle.result(PATIENCE_S)
        status = handle.status()
        client, heartbeats = process_app.app.client, process_app.app.keys(queue).heartbeats
        consumers: Any = client.zrange(heartbeats, 0, -1)
        assert len(consumers) == 1
        lease_ends: Any = client.zscore(heartbeats, consumers[0])
        eventually(lambda: (client.zscore(heartbeats, consumers[0]) or 0) > lease_ends)
    process_app.app.close()

    assert process != os.getpid()
    assert status is not None
    assert status.history[-1].facts["worker"].startswith(config.name)


# Time limits, prefetch, rate limiting


def test_limits_a_soft_limit_raises_a_timeout_event_for_observability(
    app: TaskApp, start: StartWorker
) -> None:
    @app.task(soft_time_limit_s=0.05, max_retries=0)
    def slow() -> None:
        spin()

    with app.events(["default"], idle_s=PATIENCE_S) as events:
        start()
        handle = slow.enqueue()
        with pytest.raises(TaskFailedError, match="SoftTimeLimitError"):
            handle.result(PATIENCE_S)
        event = next(event for event in events if event.kind == "soft_limit")

    assert (event.id, event.name, event.facts["attempt"]) == (handle.id, slow.name, 0)


def test_limits_a_task_at_its_hard_limit_is_killed_and_retried(valkey_url: str, tmp_path: Path) -> None:
    queue = f"q-{uuid.uuid4().hex[:10]}"
    process_app.app.use_server(valkey_url)
    config = WorkerConfig(queues=(queue,), concurrency=1)
    with ProcessWorker(f"{process_app.__name__}:app", config, url=valkey_url):
        hang = process_app.hang.with_options(queue=queue, max_retries=1)
        handle = hang.enqueue(path=str(tmp_path / "pid"))
        with pytest.raises(TaskFailedError, match=r"hard time limit of 0\.3 s"):
            handle.result(PATIENCE_S)
        status = handle.status()
    process_app.app.close()

    assert status is not None
    states = [step.state for step in status.history]
    assert states == ["queued", "running", "retried", "running", "failed", "dead_lettered"]


def test_limits_rates_are_a_token_bucket_by_an_interface_with_a_bucket_per_task(
    app: TaskApp, start: StartWorker
) -> None:
    asked: list[tuple[Bucket, Rate]] = []

    class Asked:
        def delay_ms(self, bucket: Bucket, task: str, rate: Rate, within_ms: int | None = None) -> int:
            asked.append((bucket, rate))
            return own.delay_ms(bucket, task, rate, within_ms)

        def change(self, bucket: Bucket, rate: Rate | None) -> None:
            own.change(bucket, rate)

    own = app.rate_limiter
    app.rate_limiter = Asked()

    @app.task(name="one", rate_limit="100/s")
    def one() -> None: ...

    @app.task(name="two", rate_limit="5/m")
    def two() -> None: ...

    start()
    for task in (one, two):
        task.enqueue().result(PATIENCE_S)

    assert asked == [
        (Bucket("default", "one"), Rate(100, 1_000)),
        (Bucket("default", "two"), Rate(5, 60_000)),
    ]


# Adapters


def test_adapter_the_broker_is_streams_and_a_sorted_set_for_delays(app: TaskApp) -> None:
    handle = app.enqueue("now", {})
    app.enqueue("later", {}, delay_s=3600)
    keys = app.keys("default")

    assert app.client.type(keys.streams[5]) == b"stream"
    assert app.client.type(keys.delayed) == b"zset"
    scripts.settle_and_read(app.client, keys, "died", (), count=1, max_bytes=1)
    scripts.take_over(app.client, keys, dead=["died"])
    reply = scripts.settle_and_read(app.client, keys, "next", (), count=9, max_bytes=1 << 20)
    [entry] = reply.entries
    assert json.loads(entry.fields[1])["id"] == handle.id


# Configuration model


def test_configuration_each_setting_is_an_environment_variable(tmp_path: Path) -> None:
    variables = {
        "CONQUIET_REDIS_URL": "redis://of-environment:1/0",
        "CONQUIET_DATABASE_URL": "sqlite:///of-environment.db",
        "CONQUIET_LOG_FORMAT": "json",
        "CONQUIET_TRACING": "on",
    }

    settings = Settings.load(directory=tmp_path, environment=variables)

    assert settings.redis_url == "redis://of-environment:1/0"
    assert settings.database_url == "sqlite:///of-environment.db"
    assert (settings.log_format, settings.is_tracing) == ("json", True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("settings.toml", 'redis_url = "redis://of-file:1/0"'),
        ("settings.yaml", "redis_url: redis://of-file:1/0"),
    ],
)
def test_configuration_a_config_file_is_optional(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)

    assert Settings.load(config=tmp_path / name, environment={}).redis_url == "redis://of-file:1/0"
    assert Settings.load(directory=tmp_path, environment={}).redis_url == Settings().redis_url


# Security


def test_security_tls_urls(tmp_path: Path) -> None:
    with tls_server(tmp_path) as port:
        files = f"ssl_certfile={tmp_path}/client.crt&ssl_keyfile={tmp_path}/client.key"
        with TaskApp(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={tmp_path}/ca.crt&{files}") as app:

            @app.task
            def one() -> int:
                return 1

            with Worker(app, WorkerConfig(pool="thread", concurrency=1)):
                assert one.enqueue().result(PATIENCE_S) == 1


def test_security_secrets_are_replaced_while_workers_of_both_run(valkey_url: str) -> None:
    namespace, old, new = f"tasks-{uuid.uuid4().hex[:10]}", HmacKey(os.urandom(32)), HmacKey(os.urandom(32))

    def process(active: str, **keys: HmacKey) -> TaskApp:
        opened = TaskApp(valkey_url, namespace=namespace, signing=Signing(keys, active))
        opened.task(name="double")(lambda number: 2 * number)
        return opened

    before, after = process("old", old=old), process("new", old=old, new=new)
    with process("old", old=old, new=new) as worker, Worker(worker, WorkerConfig(pool="thread")):
        handles = [each.enqueue("double", {"number": 4}) for each in (before, after)]
        assert [handle.result(PATIENCE_S) for handle in handles] == [8, 8]
    with process("new", new=new) as last, Worker(last, WorkerConfig(pool="thread")):
        handle = before.enqueue("double", {"number": 4})
        eventually(lambda: last.client.xlen(last.keys("default").dead_letters))
        status = handle.status()
    before.close()
    after.close()

    assert status is not None
    assert status.state == "queued"
    assert "To replace a key while workers run" in page("security.md")


def test_security_payloads_are_signed_and_encrypted_on_request(app: TaskApp) -> None:
    secret = "4711-card-number"
    signing, encryption = Signing({"a": HmacKey(os.urandom(32))}, "a"), Encryption({"a": os.urandom(32)}, "a")
    url = app.settings.redis_url
    with TaskApp(url, namespace=app.namespace, signing=signing, encryption=encryption) as sealed:
        sealed.enqueue("pay", {"card": secret})

    entries: Any = app.client.xrange(app.keys("default").streams[5])
    [(_, fields)] = entries
    assert secret.encode() not in fields[b"data"]
    assert json.loads(fields[b"data"])["headers"]["signature-key"] == "a"


def test_security_a_worker_has_no_endpoint_and_the_cli_has_its_credentials(
    valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = f"tasks-{uuid.uuid4().hex[:10]}"
    Path("quiet.py").write_text(
        f"from conquiet.tasks import TaskApp\n\napp = TaskApp(namespace={namespace!r})\n\n\n"
        "@app.task\ndef one() -> int:\n    return 1\n"
    )
    monkeypatch.setenv("CONQUIET_REDIS_URL", valkey_url)
    with running("worker", "quiet.py:app", "--concurrency", 1) as worker, TaskApp(namespace=namespace) as app:
        handle = app.enqueue("quiet.one", {})
        handle.result(PATIENCE_S)
        processes = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]
        listening = [one for each in processes for one in each.net_connections() if one.status == "LISTEN"]
        with running("workers", "ping", "--namespace", namespace, "--json") as ping:
            out, _ = ping.communicate(timeout=PATIENCE_S)

    assert listening == []
    # The worker and its child.
    assert [one["has_answered"] for one in json.loads(out)["workers"]] == [True, True]


def test_security_the_threat_model_names_the_broker_replays_and_leaked_credentials() -> None:
    text = page("security.md").partition("## Tasks")[2]

    assert "a compromised broker" in text
    assert "ACL users and TLS" in text
    assert "(replay)" in text
    assert "idempotent" in text
    assert "a worker's keys leak" in text
    assert "credentials in logs and pages" in text


# Observability


def test_observability_logs_are_structured_with_trace_span_and_task(
    app: TaskApp, start: StartWorker, spans: Spans, lines: list[str]
) -> None:
    log = logging.getLogger("shop")

    @app.task(name="shop.bill", max_retries=1, retry=QUICK)
    def bill(ctx: TaskContext) -> None:
        log.info("billing")
        if ctx.attempt == 0:
            raise ConnectionError("no bank")

    start()
    handle = bill.enqueue()
    handle.result(PATIENCE_S)

    found = [json.loads(line) for line in lines if handle.id in line]
    own = [line for line in found if line["logger"] == "shop"]
    assert [(line["message"], line["attempt"]) for line in own] == [("billing", 0), ("billing", 1)]
    [failed] = [line for line in found if line["level"] == "warning"]
    assert failed["message"] == f"task shop.bill {handle.id} failed at attempt 0 and will be retried"
    assert failed["attempt"] == 0
    trace = trace_of(spans.one("send"))
    for line in (*own, failed):
        assert (line["message_id"], line["task"], line["queue"]) == (handle.id, "shop.bill", "default")
        assert (line["trace_id"], len(line["span_id"])) == (trace, 16)


@pytest.mark.parametrize("pool", ["thread", "async"])
def test_observability_what_a_coroutine_logs_names_its_task(
    app: TaskApp, start: StartWorker, lines: list[str], pool: str
) -> None:
    log, both_run = logging.getLogger("shop"), threading.Barrier(2)

    @app.task(name="shop.mail")
    async def mail() -> None:
        log.info("mailing")

    @app.task(name="shop.other")
    def other() -> None:
        both_run.wait(PATIENCE_S)
        log.info("beside it")

    start(pool=pool, concurrency=2)
    handles = [other.enqueue(), other.enqueue(), mail.enqueue()]
    for handle in handles:
        handle.result(PATIENCE_S)

    own = [line for line in map(json.loads, lines) if line["logger"] == "shop"]
    seen = {(line["message"], line["message_id"], line["task"], line["queue"]) for line in own}
    assert seen == {
        ("beside it", handles[0].id, "shop.other", "default"),
        ("beside it", handles[1].id, "shop.other", "default"),
        ("mailing", handles[2].id, "shop.mail", "default"),
    }


# Risks


def test_risk_chord_fan_in_results_are_sharded_and_callbacks_throttled(
    app: TaskApp, start: StartWorker
) -> None:
    members = 2 * GROUP_SHARD + 1

    @app.task
    def member(number: int) -> int:
        return number

    runs: list[int] = []

    @app.task
    def body(numbers: list[int]) -> int:
        runs.append(len(numbers))
        return len(numbers)

    handle = chord((member.call(number) for number in range(members)), body.partial()).enqueue()
    start()
    result = handle.result(PATIENCE_S)
    keys = app.client.scan_iter(f"{app.keys('default').prefix}:group:*:*")
    sizes = sorted(app.client.hlen(key) for key in keys)

    assert result == members
    # One callback for the whole group, and no key with all of its results.
    assert sizes == [1, GROUP_SHARD, GROUP_SHARD]
    assert runs == [members]


def test_risk_rates_are_approximate_as_the_page_says_and_kept_by_a_script(app: TaskApp) -> None:
    rate, bucket = Rate.parse("2/m"), Bucket("default", "bill")

    delays = [app.rate_limiter.delay_ms(bucket, f"5:{number}-0", rate) for number in range(4)]

    assert delays[:2] == [0, 0]
    assert 0 < delays[2] <= 30_000 < delays[3] <= 60_000
    assert "take it as approximate" in page("tasks.md")


def test_risk_a_duplicate_execution_has_its_effects_once_with_a_session(
    app: TaskApp, start: StartWorker
) -> None:
    ran: list[str] = []

    @app.task
    def pay(session: DbSession, ctx: TaskContext) -> str:
        ran.append(ctx.id)
        return "paid"

    start()
    handle = pay.enqueue()
    assert handle.result(PATIENCE_S) == "paid"
    # What a failover of the server leaves, which has lost the ack, but not the task.
    record: Any = app.client.hgetall(app.keys("default").record(handle.id))
    envelope = app.envelope(pay.call()).fields() | {"id": handle.id}
    app.client.xadd(app.keys("default").streams[5], {"data": json.dumps(envelope)})
    eventually(lambda: app.client.xlen(app.keys("default").streams[5]) == 0)

    assert ran == [handle.id]
    assert record[b"state"] == b"succeeded"
    assert "idempotent" in page("tasks.md")


def test_risk_an_outage_of_redis_has_metrics_alerts_and_a_runbook() -> None:
    rule = alerts()["ConquietRedisUnreachable"]

    assert "_up" in rule["expr"]
    operations = (ROOT / "docs/operations.md").read_text()
    for heading in ("## Redis is down", "## Failover", "### What it has lost", "## Tasks"):
        assert f"\n{heading}\n" in operations

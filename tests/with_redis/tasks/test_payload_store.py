"""Arguments and results above the limit, in a payload store."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from conquiet import DbSession
from conquiet.tasks import (
    DeadLetterError,
    DirectoryPayloads,
    PayloadError,
    PayloadStoreError,
    SqlPayloads,
    TaskApp,
    TaskFailedError,
    TaskTooLargeError,
    Worker,
    WorkerConfig,
    chain,
    chord,
    group,
    settlement,
)
from conquiet.tasks.batch import TaskBatch
from conquiet.tasks.beat import Beat
from conquiet.tasks.codec import EnvelopeCodec
from conquiet.tasks.control import letter_retry
from conquiet.tasks.control.letters import find_letter
from conquiet.tasks.following import result_of
from conquiet.tasks.handling import TaskHandling
from conquiet.tasks.scripts import Taken
from conquiet.tasks.scripts import enqueue as scripts
from conquiet.tasks.security import Encryption, HmacKey, Signing
from conquiet.tasks.worker.execution import ThreadExecution
from tests.eventually import eventually
from tests.with_redis.tasks.conftest import QUICK

PATIENCE_S = 600.0
LIMIT = 4_000
BIG = "x" * 50_000


class Store(DirectoryPayloads):
    """Files, that can be counted and that can be unavailable."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.create()
        self.directory = directory
        self.failures: list[str] = []
        self.puts = 0

    def put(self, key: str, content: bytes) -> None:
        self._fail("put")
        self.puts += 1
        super().put(key, content)

    def get(self, key: str) -> bytes | None:
        self._fail("get")
        return super().get(key)

    def delete(self, key: str) -> None:
        self._fail("delete")
        super().delete(key)

    def files(self) -> list[Path]:
        return sorted(path for path in self.directory.glob("*/*") if path.is_file())

    def _fail(self, what: str) -> None:
        if what in self.failures:
            self.failures.remove(what)
            raise OSError("the file system is unavailable")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "payloads")


def make_app(url: str, engine: Engine, store: Store, namespace: str = "", **given: Any) -> TaskApp:
    name = namespace or f"tasks-{uuid.uuid4().hex[:10]}"
    app = TaskApp(url, database=engine, namespace=name, max_bytes=LIMIT, **given)
    app.payload_store = store

    @app.task(name="length", max_retries=0)
    def length(text: str) -> int:
        return len(text)

    @app.task(name="repeat", max_retries=2, retry=QUICK)
    def repeat(text: str, times: int = 1) -> str:
        return text * times

    @app.task(name="longest", max_retries=0)
    def longest(texts: list[str]) -> int:
        return max(len(text) for text in texts)

    return app


@pytest.fixture
def app(server_url: str, engine: Engine, store: Store) -> Iterator[TaskApp]:
    with make_app(server_url, engine, store) as opened:
        yield opened


def work(app: TaskApp) -> Worker:
    return Worker(app, WorkerConfig(pool="thread", concurrency=1, heartbeat_ttl_s=20.0))


def index(app: TaskApp, queue: str = "default") -> dict[bytes, bytes]:
    client: Any = app.client
    found: dict[bytes, bytes] = client.hgetall(app.keys(queue).payloads)
    return found


def entries(app: TaskApp) -> list[tuple[bytes, dict[bytes, bytes]]]:
    client: Any = app.client
    found: list[tuple[bytes, dict[bytes, bytes]]] = client.xrange(app.keys("default").streams[5])
    return found


def test_large_arguments_and_results_are_stored_and_come_back(app: TaskApp, store: Store) -> None:
    with work(app):
        assert app.tasks["length"].enqueue(BIG).result(PATIENCE_S) == len(BIG)
        handle = app.tasks["repeat"].enqueue("x" * 1_000, 50)
        assert handle.result(PATIENCE_S) == BIG
        assert asyncio.run(handle.result_async(PATIENCE_S)) == BIG

    assert store.puts == 2
    status = handle.status()
    assert status is not None
    assert status.stored is not None
    assert (status.state, status.result, status.stored.size) == ("succeeded", None, len(BIG) + 2)


def test_what_is_below_the_limit_is_not_stored(app: TaskApp, store: Store) -> None:
    with work(app):
        assert app.tasks["repeat"].enqueue("x", 10).result(PATIENCE_S) == "x" * 10

    assert store.files() == []
    assert index(app) == {}


def test_nothing_large_is_in_redis(app: TaskApp) -> None:
    handle = app.tasks["repeat"].enqueue(BIG, 2)
    with work(app):
        handle.result(PATIENCE_S)

    client: Any = app.client
    sizes = {key: client.memory_usage(key) for key in client.scan_iter(f"{app.namespace}:*")}
    assert {key: size for key, size in sizes.items() if size > 20_000} == {}


def test_stored_arguments_are_deleted_when_the_task_is_acked_and_a_result_stays(
    app: TaskApp, store: Store
) -> None:
    with work(app):
        app.tasks["length"].enqueue(BIG).result(PATIENCE_S)
        eventually(lambda: index(app) == {})
        assert store.files() == []

        app.tasks["repeat"].enqueue(BIG).result(PATIENCE_S)
        eventually(lambda: (len(store.files()), len(index(app))) == (1, 1))


def test_the_envelope_has_a_reference_that_older_workers_do_not_run(app: TaskApp) -> None:
    app.tasks["length"].enqueue(BIG)

    [(_, fields)] = entries(app)
    envelope = json.loads(fields[b"data"])
    assert envelope["args"] == {}
    assert envelope["meta"]["schemaVersion"] == 2
    assert set(envelope["meta"]["storedArgs"]) == {"key", "sha256", "bytes"}


def test_without_a_store_it_is_refused_and_the_error_says_what_can_be_done(app: TaskApp) -> None:
    app.payload_store = None

    with pytest.raises(TaskTooLargeError, match="payload_store"):
        app.tasks["length"].enqueue(BIG)
    with work(app), pytest.raises(TaskFailedError, match="TaskTooLargeError"):
        app.tasks["repeat"].enqueue("x", 50_000).result(PATIENCE_S)


def test_many_tasks_delayed_ones_and_unique_ones_are_stored_too(app: TaskApp) -> None:
    length = app.tasks["length"]
    handles = length.enqueue_many({"text": BIG + "x" * n} for n in range(5))
    delayed = length.with_options(delay_s=0.05).enqueue(BIG)
    first, second = (length.with_options(unique_for_s=60).enqueue(BIG) for _ in range(2))

    assert (second.id, second.is_new) == (first.id, False)
    with work(app):
        assert [one.result(PATIENCE_S) for one in handles] == [len(BIG) + n for n in range(5)]
        assert delayed.result(PATIENCE_S) == first.result(PATIENCE_S) == len(BIG)
    eventually(lambda: index(app) == {})


@pytest.mark.parametrize("ignores", [True, False])
def test_a_duplicate_leaves_no_copy_of_its_arguments(app: TaskApp, store: Store, ignores: bool) -> None:
    unique = app.tasks["length"].with_options(unique_for_s=60, ignore_result=ignores)
    unique.enqueue(BIG)
    [first] = store.files()

    unique.enqueue(BIG)
    unique.enqueue_many([{"text": BIG}] * 2)

    assert store.files() == [first]
    assert [key.decode() for key in index(app)] == [first.name]


def test_a_canvas_that_is_enqueued_twice_leaves_no_copy_of_its_arguments(app: TaskApp, store: Store) -> None:
    @app.task(name="join", max_retries=0)
    def join(texts: list[str], by: str) -> int:
        return len(by.join(texts))

    canvas = chord([app.tasks["length"].call(BIG), app.tasks["repeat"].call("a")], join.partial(by=BIG))
    canvas.enqueue(id="again")
    files = store.files()

    canvas.enqueue(id="again")

    assert (len(files), store.files()) == (2, files)
    assert sorted(key.decode() for key in index(app)) == sorted(file.name for file in files)


@pytest.mark.parametrize("options", [{}, {"unique_for_s": 60}, {"unique_for_s": 60, "ignore_result": True}])
def test_what_is_sent_again_after_a_lost_reply_keeps_its_arguments(
    app: TaskApp, options: dict[str, Any]
) -> None:
    call = app.tasks["length"].with_options(**options).call(BIG)
    keys, new = app._sender.prepare(app.envelope(call), call.options)

    assert scripts.enqueue(app.client, keys, new) == scripts.Enqueued(new.id, is_new=True)
    assert scripts.enqueue(app.client, keys, new).leaves_payload is False


def test_two_calls_that_retry_one_dead_letter_leave_one_copy(
    app: TaskApp, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = app.enqueue("unknown", {"text": BIG})
    [file] = store.files()
    content = file.read_bytes()
    with work(app), pytest.raises(TaskFailedError):
        handle.result(PATIENCE_S)
    letter = find_letter(app.client, app.keys("default"), handle.id)
    first = app.control.retry(handle.id, queue="default")

    # It has read the letter before the other call deleted it, and its arguments.
    file.write_bytes(content)
    monkeypatch.setattr(letter_retry, "find_letter", lambda *_: letter)
    assert app.control.retry(handle.id, queue="default") == first

    assert len(store.files()) == len(index(app)) == 1


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_arguments_that_are_missing_or_changed_are_a_dead_letter_with_its_reason(
    app: TaskApp, store: Store, damage: str
) -> None:
    handle = app.tasks["length"].enqueue(BIG)
    [file] = store.files()
    file.unlink() if damage == "missing" else file.write_bytes(b'{"text": "another"}')

    reason = "not in the payload store" if damage == "missing" else "wrong SHA-256"
    with work(app), pytest.raises(TaskFailedError, match=reason) as caught:
        handle.result(PATIENCE_S)

    assert "PayloadError" in str(caught.value)
    [letter] = app.control.tasks("default", "dead_lettered").tasks
    assert letter.id == handle.id


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_result_that_is_missing_or_changed_is_an_error_of_result(
    app: TaskApp, store: Store, damage: str
) -> None:
    handle = app.tasks["repeat"].enqueue("x", 50_000)
    with work(app):
        handle.result(PATIENCE_S)
    [file] = store.files()
    file.unlink() if damage == "missing" else file.write_bytes(b'"another"')

    with pytest.raises(PayloadError, match="not in the payload store" if damage == "missing" else "SHA-256"):
        handle.result(PATIENCE_S)


def test_a_caller_without_the_store_gets_an_error_and_not_a_wrong_result(app: TaskApp) -> None:
    handle = app.tasks["repeat"].enqueue("x", 50_000)
    with work(app):
        handle.result(PATIENCE_S)

    app.payload_store = None
    with pytest.raises(PayloadError, match="has no payload_store"):
        handle.result(PATIENCE_S)
    with pytest.raises(PayloadError, match="50,002 bytes"):
        result_of(handle.id, handle.status())


def test_a_worker_without_the_store_runs_nothing_and_the_dead_letter_can_be_retried_with_it(
    app: TaskApp, store: Store
) -> None:
    handle = app.tasks["length"].enqueue(BIG)
    app.payload_store = None
    with work(app), pytest.raises(TaskFailedError, match="has no payload_store"):
        handle.result(PATIENCE_S)
    with pytest.raises(DeadLetterError, match="has no payload_store"):
        app.control.retry(handle.id, queue="default")

    app.payload_store = store
    new = app.handle(app.control.retry(handle.id, queue="default"), "default")

    assert len(store.files()) == 1
    with work(app):
        assert new.result(PATIENCE_S) == len(BIG)
    eventually(lambda: store.files() == [])


def test_a_dry_run_of_a_retry_stores_nothing(app: TaskApp, store: Store) -> None:
    handle = app.tasks["length"].enqueue(BIG)
    [file] = store.files()
    content = file.read_bytes()
    file.write_bytes(b"changed")
    with work(app), pytest.raises(TaskFailedError):
        handle.result(PATIENCE_S)

    assert app.control.retry_all(queue="default", dry_run=True).refused != ()
    file.write_bytes(content)
    assert app.control.retry_all(queue="default", dry_run=True).retried == ((handle.id, ""),)

    assert (store.puts, store.files()) == (1, [file])


@pytest.fixture
def _tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settlement, "_STORE_UNAVAILABLE_MS", (1, 1))


@pytest.mark.usefixtures("_tried_again_at_once")
def test_a_store_that_is_unavailable_uses_no_attempt_and_loses_nothing(app: TaskApp, store: Store) -> None:
    handle = app.tasks["repeat"].with_options(max_retries=0).enqueue(BIG)

    store.failures = ["get", "get", "put", "delete"]
    with work(app):
        assert handle.result(PATIENCE_S) == BIG

    status = handle.status()
    assert status is not None
    assert status.attempt == 0
    errors = [step.facts["error"] for step in status.history if "error" in step.facts]
    assert [step.state for step in status.history if "error" in step.facts] == ["queued"] * len(errors)
    assert {"could not read" in error for error in errors[:-1]} == {True}
    assert "could not write" in errors[-1]
    # The arguments, which could not be deleted, and what could not be written are left to a purge.
    assert len(store.files()) == 2
    assert app.control.purge_payloads(queue="default", older_than_ms=0) == 2
    assert len(store.files()) == len(index(app)) == 1
    assert handle.result(PATIENCE_S) == BIG


@pytest.mark.usefixtures("_tried_again_at_once")
def test_a_group_is_gathered_and_a_chord_ends_though_the_store_is_unavailable_for_long(
    app: TaskApp, store: Store
) -> None:
    members = [app.tasks["repeat"].call("x", 10_000 * n) for n in (1, 2)]
    store.failures = ["get"] * 20
    with work(app):
        assert chain(group(members)).enqueue().result(PATIENCE_S) == ["x" * 10_000, "x" * 20_000]
        assert store.failures == []
        store.failures = ["get"] * 20
        assert chord(members, app.tasks["longest"].partial()).enqueue().result(PATIENCE_S) == 20_000
        assert store.failures == []


def test_an_enqueue_whose_store_fails_enqueues_nothing(app: TaskApp, store: Store) -> None:
    store.failures = ["put"]

    with pytest.raises(PayloadStoreError, match="file system is unavailable"):
        app.tasks["length"].enqueue(BIG)

    assert app.client.exists(app.keys("default").streams[5]) == 0
    assert app.control.purge_payloads(queue="default", older_than_ms=0) == 1
    assert index(app) == {}


def test_chains_groups_and_chords_pass_stored_results_on(app: TaskApp, store: Store) -> None:
    length, repeat, longest = (app.tasks[name] for name in ("length", "repeat", "longest"))
    with work(app):
        assert chain(repeat.call(BIG), repeat.partial(), length.partial()).enqueue().result(
            PATIENCE_S
        ) == len(BIG)
        members = [repeat.call("x", 10_000 * n) for n in range(3)]
        assert group(members).enqueue().results(PATIENCE_S) == ["", "x" * 10_000, "x" * 20_000]
        assert chord(members, longest.partial()).enqueue().result(PATIENCE_S) == 20_000
        nested = chain(group(repeat.call(BIG), chain(repeat.call(BIG), repeat.partial())), longest.partial())
        assert nested.enqueue().result(PATIENCE_S) == len(BIG)


def test_the_task_behind_a_group_may_have_large_arguments_of_its_own(app: TaskApp) -> None:
    @app.task(name="join", max_retries=0)
    def join(texts: list[str], by: str) -> int:
        return len(by.join(texts))

    body = join.partial(by=BIG)
    handle = chord([app.tasks["repeat"].call("a"), app.tasks["repeat"].call("b")], body).enqueue()
    # Its group has not ended: nothing of it may be purged.
    assert app.control.purge_payloads(queue="default", older_than_ms=0) == 0

    with work(app):
        assert handle.result(PATIENCE_S) == len(BIG) + 2


def test_a_stored_result_that_is_missing_fails_what_follows(app: TaskApp, store: Store) -> None:
    class Losing(Store):
        def put(self, key: str, content: bytes) -> None:
            """Nothing."""

    app.payload_store = Losing(store.directory)
    with work(app):
        handle = chain(app.tasks["repeat"].call("x", 50_000), app.tasks["length"].partial()).enqueue()
        with pytest.raises(TaskFailedError, match="not in the payload store"):
            handle.result(PATIENCE_S)
        behind = chord([app.tasks["repeat"].call("x", 50_000)], app.tasks["longest"].partial()).enqueue()
        with pytest.raises(TaskFailedError, match="not in the payload store"):
            behind.result(PATIENCE_S)


def test_what_follows_waits_for_a_store_that_is_unavailable(app: TaskApp, store: Store) -> None:
    handle = chain(app.tasks["repeat"].call("x", 50_000), app.tasks["length"].partial()).enqueue()

    store.failures = ["get"]
    with work(app):
        assert handle.result(PATIENCE_S) == 50_000


def test_a_canvas_that_is_too_large_itself_is_refused(app: TaskApp, store: Store) -> None:
    links = [app.tasks["repeat"].partial() for _ in range(50)]

    with pytest.raises(TaskTooLargeError, match="canvas"):
        chain(app.tasks["repeat"].call("x"), *links).enqueue()

    assert store.files() == []


def test_the_result_of_a_committed_task_is_kept_when_its_worker_dies_before_the_ack(
    app: TaskApp, store: Store
) -> None:
    calls = []

    @app.task(name="with_session", max_retries=0)
    def with_session(session: DbSession) -> str:
        calls.append(1)
        return BIG

    handle = with_session.enqueue()
    handling = TaskHandling(app, "dead", write_record=lambda _msg, _fields: None, execution=ThreadExecution())
    [(entry_id, fields)] = entries(app)
    batch = TaskBatch()
    flat = [part for pair in fields.items() for part in pair]
    batch.add(app, app.keys("default"), [Taken(5, entry_id.decode(), flat, 1, has_waited=False)])
    with handling:
        handling.handle(batch.messages[0])

    with work(app):
        assert handle.result(PATIENCE_S) == BIG
    assert (calls, store.puts) == ([1], 1)


def test_a_rate_key_is_that_of_the_stored_arguments(app: TaskApp) -> None:
    keys = []

    def first_of(args: Any) -> str:
        keys.append(args["text"][:1])
        return str(args["text"][:1])

    @app.task(name="limited", rate_limit="1000/s", rate_key=first_of)
    def limited(text: str) -> int:
        return len(text)

    with work(app):
        assert limited.enqueue(BIG).result(PATIENCE_S) == len(BIG)
    assert keys == ["x"]


def test_a_purge_deletes_only_what_no_task_result_or_dead_letter_needs(app: TaskApp, store: Store) -> None:
    @app.task(name="fail", max_retries=0)
    def fail(text: str) -> None:
        raise ValueError(text[:1])

    def purge() -> int:
        return app.control.purge_payloads(queue="default", older_than_ms=0)

    repeat, length = app.tasks["repeat"], app.tasks["length"]
    waiting = [
        length.with_options(delay_s=3600).enqueue(BIG),
        length.with_options(ignore_result=True, delay_s=3600).enqueue(BIG),
        length.with_options(ignore_result=True, queue="other").enqueue(BIG),
    ]
    failed, result = fail.enqueue(BIG), repeat.enqueue("x", 50_000)
    with work(app):
        assert result.result(PATIENCE_S)
        with pytest.raises(TaskFailedError):
            failed.result(PATIENCE_S)
    # Their records expire, the letter stays.
    app.client.delete(app.keys("default").record(failed.id), app.keys("default").record(waiting[0].id))

    assert app.control.purge_payloads(queue="other", older_than_ms=0) == 0
    assert purge() == 0
    assert len(store.files()) == 5

    app.client.delete(app.keys("default").record(result.id))
    assert app.control.purge_payloads(queue="default", older_than_ms=3_600_000) == 0
    assert app.control.purge_payloads(queue="default", older_than_ms=0, dry_run=True) == 1
    assert purge() == 1
    app.control.purge([failed.id], queue="default")
    assert purge() == 1
    assert waiting[0].revoke().is_revoked
    assert purge() == 1
    assert len(store.files()) == 2


def test_a_purge_leaves_the_arguments_of_what_a_beat_has_claimed_and_not_delivered(
    app: TaskApp, server_url: str, engine: Engine, store: Store
) -> None:
    with make_app(server_url, engine, store, app.namespace) as writer:
        writer.codec.max_bytes = 1 << 20
        at = datetime.now(UTC) - timedelta(minutes=1)
        writer.schedules.apply(
            writer.new_schedule("big", "length", {"text": BIG}, at=at, misfire_grace_s=86_400)
        )
    schedules: Any = app.schedules.store
    # As on a cluster, where the script that claims cannot enqueue.
    schedules._is_cluster = True
    beat = Beat(app)
    assert (beat.tick().claimed, app.schedules.stats().pending) == (1, 1)

    assert app.control.purge_payloads(queue="default", older_than_ms=0) == 0

    assert beat.tick().delivered == 1
    [(_, fields)] = entries(app)
    handle = app.handle(json.loads(fields[b"data"])["id"], "default")
    with work(app):
        assert handle.result(PATIENCE_S) == len(BIG)


def test_a_definition_above_the_limit_is_refused_and_not_stored(app: TaskApp, store: Store) -> None:
    with pytest.raises(TaskTooLargeError, match="schedule 'big'"):
        app.schedules.apply(app.new_schedule("big", "length", {"text": BIG}, every=60))

    assert store.files() == []


def test_a_purge_of_one_app_leaves_what_another_one_has_in_the_same_directory(
    app: TaskApp, server_url: str, engine: Engine, store: Store
) -> None:
    with make_app(server_url, engine, store) as another:
        another.tasks["length"].enqueue(BIG)

        assert app.control.purge_payloads(queue="default", older_than_ms=0) == 0
        assert len(store.files()) == 1


def test_results_of_a_group_are_kept_as_long_as_the_group(app: TaskApp, store: Store) -> None:
    repeat = app.tasks["repeat"].with_options(result_ttl_s=1)
    handle = group(repeat.call("x", 50_000)).enqueue()
    with work(app):
        handle.results(PATIENCE_S)
    app.client.delete(*app.client.scan_iter(f"{app.namespace}:*:task:*"))

    assert app.control.purge_payloads(queue="default", older_than_ms=0) == 0
    assert handle.results(PATIENCE_S) == ["x" * 50_000]

    app.client.delete(app.keys("default").group(handle.id))
    assert app.control.purge_payloads(queue="default", older_than_ms=0) == 1
    assert store.files() == []


def test_a_result_that_is_not_kept_is_not_stored(app: TaskApp, store: Store) -> None:
    with work(app):
        app.tasks["repeat"].with_options(ignore_result=True).enqueue("x", 50_000)
        assert app.tasks["length"].enqueue("x").result(PATIENCE_S) == 1

    assert store.puts == 0


def seals() -> dict[str, Any]:
    return {
        "signing": Signing({"one": HmacKey(os.urandom(32))}, "one"),
        "encryption": Encryption({"e": os.urandom(32)}, "e"),
    }


def test_stored_content_is_encrypted_and_the_signature_covers_its_digest(
    server_url: str, engine: Engine, store: Store
) -> None:
    text = "secret" * 10_000
    with make_app(server_url, engine, store, **seals()) as app:
        handle = app.tasks["repeat"].enqueue(text)
        assert all(b"secret" not in file.read_bytes() for file in store.files())
        with work(app):
            assert handle.result(PATIENCE_S) == text
            eventually(lambda: len(store.files()) == 1)
            assert b"secret" not in store.files()[0].read_bytes()
            assert chain(app.tasks["repeat"].call(text), app.tasks["length"].partial()).enqueue().result(
                PATIENCE_S
            ) == len(text)

        app.codec = EnvelopeCodec(max_bytes=LIMIT, payloads=app.payloads)
        with pytest.raises(PayloadError, match="encrypted"):
            handle.result(PATIENCE_S)


def test_content_with_a_digest_that_was_not_signed_never_runs(
    server_url: str, engine: Engine, store: Store
) -> None:
    with make_app(server_url, engine, store, **seals()) as app:
        app.tasks["length"].enqueue("forged" * 10_000)
        app.tasks["length"].enqueue("genuine" * 10_000)
        stream = app.keys("default").streams[5]
        [(_, forged), (_, genuine)] = entries(app)
        envelope, other = json.loads(genuine[b"data"]), json.loads(forged[b"data"])
        envelope["meta"]["storedArgs"] = other["meta"]["storedArgs"]
        app.client.delete(stream)
        app.client.xgroup_create(stream, "workers", "0", mkstream=True)
        app.client.xadd(stream, {"data": json.dumps(envelope)})

        with work(app):
            eventually(lambda: app.control.tasks("default", "dead_lettered").tasks)

        [letter] = app.control.tasks("default", "dead_lettered").tasks
        assert "signature" in str(letter.error)


@pytest.mark.parametrize("end", ["revoked", "expired", "poison", "committed"])
def test_what_follows_on_a_task_that_ends_without_its_stored_and_encrypted_arguments_is_known(
    server_url: str, engine: Engine, store: Store, end: str
) -> None:
    with make_app(server_url, engine, store, **seals()) as app:

        @app.task(name="with_session", max_retries=0)
        def with_session(session: DbSession, text: str) -> int:
            return len(text)

        first = with_session.with_options(expires_s=0.001) if end == "expired" else with_session
        behind = app.tasks["repeat"].partial(times=2)
        handle = chain(first.call(text="secret" * 10_000), behind).enqueue()
        [(entry_id, fields)] = entries(app)
        task_id = json.loads(fields[b"data"])["id"]
        if end == "revoked":
            app.control.revoke(task_id, queue="default")
        elif end in ("poison", "committed"):
            client: Any = app.client
            stream = app.keys("default").streams[5]
            client.xreadgroup("workers", "dead", {stream: ">"})
            client.xclaim(stream, "workers", "dead", 0, [entry_id], retrycount=9 if end == "poison" else 1)
        if end == "committed":
            batch = TaskBatch()
            flat = [part for pair in fields.items() for part in pair]
            batch.add(app, app.keys("default"), [Taken(5, entry_id.decode(), flat, 1, has_waited=False)])
            dead = TaskHandling(
                app, "dead", write_record=lambda _msg, _fields: None, execution=ThreadExecution()
            )
            with dead:
                dead.handle(batch.messages[0])

        with work(app):
            if end == "committed":
                # The step behind it has run: it takes a text, and got a number.
                with pytest.raises(TaskFailedError, match="TaskArgumentsError"):
                    handle.result(PATIENCE_S)
            else:
                with pytest.raises(TaskFailedError, match="a task before it is"):
                    handle.result(PATIENCE_S)


def test_without_the_reference_to_its_encrypted_arguments_a_task_never_runs_with_its_defaults(
    server_url: str, engine: Engine, store: Store
) -> None:
    encryption = seals()["encryption"]
    with make_app(server_url, engine, store, encryption=encryption) as app:

        @app.task(name="with_default", max_retries=0)
        def with_default(text: str = "") -> int:
            return len(text)

        with_default.enqueue(BIG)
        stream = app.keys("default").streams[5]
        [(entry_id, fields)] = entries(app)
        envelope = json.loads(fields[b"data"])
        envelope["meta"] = {"schemaVersion": 1}
        app.client.xdel(stream, entry_id)
        app.client.xadd(stream, {"data": json.dumps(envelope)})

        with work(app):
            eventually(lambda: app.control.tasks("default", "dead_lettered").tasks)

        [letter] = app.control.tasks("default", "dead_lettered").tasks
        assert "cannot be decrypted" in str(letter.error)


def test_stored_arguments_of_another_task_cannot_be_decrypted(
    server_url: str, engine: Engine, store: Store
) -> None:
    with make_app(server_url, engine, store, encryption=seals()["encryption"]) as app:
        codec = app.codec
        first, second = (
            codec.decode(codec.encode(app.envelope(app.tasks["length"].call(BIG))).data) for _ in "12"
        )
        first.meta = second.meta

        with pytest.raises(PayloadError, match="cannot be decrypted"):
            codec.load_args(first)
        codec.load_args(second)
        assert second.args == {"text": BIG}


def test_a_dead_letter_with_stored_and_encrypted_arguments_is_retried(
    server_url: str, engine: Engine, store: Store
) -> None:
    with make_app(server_url, engine, store, **seals()) as app:
        handle = app.tasks["length"].enqueue(BIG)
        app.payload_store = None
        with work(app), pytest.raises(TaskFailedError):
            handle.result(PATIENCE_S)
        app.payload_store = store

        new = app.handle(app.control.retry(handle.id, queue="default"), "default")

        with work(app):
            assert new.result(PATIENCE_S) == len(BIG)


def test_a_table_of_the_apps_database_is_a_store_too(app: TaskApp, engine: Engine) -> None:
    app.payload_store = SqlPayloads(engine)

    with work(app):
        assert app.tasks["repeat"].enqueue(BIG, 2).result(PATIENCE_S) == BIG * 2

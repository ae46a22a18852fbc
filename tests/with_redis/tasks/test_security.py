"""Signed and encrypted tasks."""

from __future__ import annotations

import base64
import json
import os
import uuid
from itertools import pairwise
from typing import Any

import pytest
from prometheus_client import REGISTRY

from conquiet.tasks import Task, TaskApp, Worker, WorkerConfig, chain
from conquiet.tasks.security import Ed25519Key, Encryption, HmacKey, Signing, SigningKey
from tests.eventually import eventually

PATIENCE_S = 600.0


def make_app(url: str, namespace: str, **seals: Any) -> tuple[TaskApp, Task[..., int]]:
    app = TaskApp(url, namespace=namespace, **seals)

    @app.task(name="add")
    def add(a: int, b: int = 1) -> int:
        return a + b

    return app, add


@pytest.fixture
def namespace() -> str:
    return f"tasks-{uuid.uuid4().hex[:10]}"


@pytest.fixture(params=["hmac", "ed25519"])
def key(request: pytest.FixtureRequest) -> SigningKey:
    return HmacKey(os.urandom(32)) if request.param == "hmac" else Ed25519Key.generate()


def work(app: TaskApp) -> Worker:
    return Worker(app, WorkerConfig(pool="thread", concurrency=1, heartbeat_ttl_s=20))


def test_signed_and_encrypted_tasks_and_canvases_run(
    valkey_url: str, namespace: str, key: SigningKey
) -> None:
    app, add = make_app(
        valkey_url,
        namespace,
        signing=Signing({"one": key}, "one"),
        encryption=Encryption({"e": os.urandom(32)}, "e"),
    )

    with app, work(app):
        assert add.enqueue(40, b=2).result(PATIENCE_S) == 42
        assert chain(add.call(1), add.partial(b=10)).enqueue().result(PATIENCE_S) == 12


@pytest.mark.parametrize("change", ["unsigned", "changed", "unknown key", "garbage"])
def test_a_bad_signature_is_a_dead_letter_and_never_runs(
    valkey_url: str, namespace: str, key: SigningKey, change: str
) -> None:
    app, add = make_app(valkey_url, namespace, signing=Signing({"one": key}, "one"))
    keys = app.keys("default")
    fields = json.loads(app.codec.encode(app.envelope(add.call(1))).data)
    if change == "unsigned":
        del fields["headers"]["signature"]
    elif change == "changed":
        fields["args"]["a"] = 1_000_000
    elif change == "unknown key":
        fields["headers"]["signature-key"] = "two"
    else:
        fields["headers"]["signature"] = "?"

    def invalid() -> float:
        name = "conquiet_tasks_signature_invalid_total"
        return REGISTRY.get_sample_value(name, {"queue": "default"}) or 0.0

    with app, work(app):
        add.enqueue(1).result(PATIENCE_S)
        before = invalid()
        app.client.xadd(keys.streams[5], {"data": json.dumps(fields)})
        eventually(lambda: app.client.xlen(keys.dead_letters) == 1)
        assert invalid() == before + 1
        letters: Any = app.client.xrange(keys.dead_letters)

    reasons = {"unsigned": "no signature", "unknown key": "not known here"}
    assert reasons.get(change, "is wrong") in json.loads(letters[0][1][b"data"])["errorMessage"]


def test_keys_are_replaced_one_process_after_the_other(valkey_url: str, namespace: str) -> None:
    old, new = HmacKey(os.urandom(32)), HmacKey(os.urandom(32))
    both_keys = {"old": old, "new": new}
    sender, add = make_app(valkey_url, namespace, signing=Signing({"old": old}, "old"))
    worker, _ = make_app(valkey_url, namespace, signing=Signing(both_keys, "new"))
    next_sender, next_add = make_app(valkey_url, namespace, signing=Signing(both_keys, "new"))

    with sender, next_sender, worker, work(worker):
        assert add.enqueue(1).result(PATIENCE_S) == 2
        assert next_add.enqueue(2).result(PATIENCE_S) == 3


def test_arguments_and_canvases_are_not_readable_in_redis(valkey_url: str, namespace: str) -> None:
    app, _ = make_app(valkey_url, namespace, encryption=Encryption({"e": os.urandom(16)}, "e"))

    @app.task
    def pay(card: str) -> None: ...

    @app.task
    def note(result: None, card: str) -> None: ...

    with app:
        chain(pay.call(card="visa!4-x"), note.partial(card="euro#7;y")).enqueue()
        pay.with_options(delay_s=60).enqueue(card="visa!4-x")
        dump = b"".join(app.client.dump(name) or b"" for name in app.client.keys(f"{namespace}:*"))

    assert b"visa" not in dump
    assert b"euro" not in dump


def test_ciphertext_that_is_moved_to_another_task_is_a_dead_letter(valkey_url: str, namespace: str) -> None:
    app, add = make_app(valkey_url, namespace, encryption=Encryption({"e": os.urandom(32)}, "e"))
    first, second = (json.loads(app.codec.encode(app.envelope(add.call(n))).data) for n in (1, 2))
    first["args"] = second["args"]

    with pytest.raises(ValueError, match="cannot be decrypted"):
        app.codec.decode(json.dumps(first).encode())


def test_a_process_with_the_public_key_alone_runs_tasks_and_enqueues_none(
    valkey_url: str, namespace: str
) -> None:
    pair = Ed25519Key.generate()
    sender, add = make_app(valkey_url, namespace, signing=Signing({"k": pair}, "k"))
    public = Signing({"k": Ed25519Key(public=pair.public)}, "k")
    worker, same = make_app(valkey_url, namespace, signing=public)

    with sender, worker, work(worker):
        assert add.enqueue(1).result(PATIENCE_S) == 2
        with pytest.raises(ValueError, match="only the public key"):
            same.enqueue(1)


def test_a_short_secret_and_an_unknown_active_key_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 32 bytes"):
        HmacKey(b"short")
    with pytest.raises(ValueError, match="active"):
        Signing({"one": HmacKey(b"x" * 32)}, "two")
    with pytest.raises(ValueError, match="128, 192, or 256 bits"):
        Encryption({"e": b"short"}, "e")


def test_keys_of_a_setting_are_replaced_one_process_at_a_time(valkey_url: str, namespace: str) -> None:
    old, new = (f"{name}={base64.b64encode(os.urandom(32)).decode()}" for name in ("2026", "2027"))

    def process(keys: str) -> tuple[TaskApp, Task[..., int]]:
        return make_app(valkey_url, namespace, signing=Signing.parse(keys), encryption=Encryption.parse(keys))

    settings = [old, f"{old} {new}", f"{new} {old}", new]
    for before, after in pairwise(settings):
        processes = [process(before), process(after)]
        for worker, _ in processes:
            with work(worker):
                # Before the last step nothing is signed with the old key any more.
                assert [add.enqueue(1).result(PATIENCE_S) for _, add in processes] == [2, 2]
        for app, _ in processes:
            app.close()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "there is no key"),
        ("aGVsbG8taGVsbG8taGVsbG8taGVsbG8taGVsbG8", "number 1 is not"),
        ("2026=no!base64", "'2026' is not base64"),
        ("2026=aGVsbG8=", "at least 32 bytes, got 5"),
    ],
)
def test_a_setting_that_has_no_keys_is_refused_without_showing_them(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        Signing.parse(text)

    secret = text.partition("=")[2] or text
    assert not secret or secret not in str(caught.value)

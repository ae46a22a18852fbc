"""Topics, groups, dead letters, trimming, consumers, looks: on a real server, with and without a yes."""

from __future__ import annotations

import json

import pytest

from conquiet import QueueConfig, RedisStreamsQueue
from conquiet.mq import Topics
from tests.cli.test_drain import drain, fill


@pytest.fixture
def filled(run, topic):
    """A topic of two partitions with six messages, one of them pending."""
    run("topics", "create", topic, "--partitions", "2")
    fill(run, topic, 6)
    drain(run, topic, "accept_alone", "--max-messages", "3")
    return topic


@pytest.fixture
def letters(run, topic):
    """Three dead letters of a topic."""
    run("topics", "create", topic)
    fill(run, topic, 3)
    drain(run, topic, "give_up")
    return [letter["id"] for letter in run("dlq", "list", topic, "--json").json["letters"]]


def test_topics_are_created_listed_grown_and_never_shrunk(run_on_each, topic):
    assert (
        run_on_each(
            "topics", "create", topic, "-p", "2", "--keep", "10", "--keep-for", "7d", "--trim-every", "60s"
        ).code
        == 0
    )
    created = run_on_each("topics", "create", topic, "-p", "2", "--json").json
    policies = {
        "retention_length": 10,
        "retention_ms": 7 * 86_400_000,
        "dead_letters": None,
        "trim_every_s": 60,
    }
    assert created["policies"] == policies

    assert run_on_each("topics", "grow", topic, "-p", "3", "--json").json["partitions"] == 3
    assert run_on_each("topics", "grow", topic, "-p", "1").code == 4
    assert run_on_each("topics", "create", topic, "-p", "9").code == 4

    listed = run_on_each("topics", "list", "--json").json["topics"]
    assert {one["name"]: one["partitions"] for one in listed}[topic] == 3
    assert topic in run_on_each("topics", "list").out


def test_a_topic_that_cannot_be_read_hides_no_other(run, topic, valkey):
    assert run("topics", "create", f"{topic}-broken").code == 0
    assert run("topics", "create", topic).code == 0
    valkey.set(f"stream:topic:{topic}-broken:p:0", "not a stream")

    listed = {one["name"]: one for one in run("topics", "list", "--json").json["topics"]}
    assert "WRONGTYPE" in listed[f"{topic}-broken"]["error"]
    assert listed[topic]["partitions"] == 1
    assert "WRONGTYPE" in run("topics", "list").out
    valkey.delete(f"stream:topic:{topic}-broken:p:0")


@pytest.mark.parametrize(
    "destructive",
    [
        ("topics", "delete", "{topic}"),
        ("groups", "reset", "{topic}", "billing", "--to", "start"),
        ("groups", "delete", "{topic}", "billing", "--force"),
        ("consumers", "prune", "{topic}", "-g", "billing"),
        ("trim", "{topic}", "--keep", "0"),
        ("dlq", "purge", "{topic}", "--all"),
        ("dlq", "replay", "{topic}", "--all"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_what_changes_something_for_good_needs_a_yes_off_a_terminal(run, letters, topic, valkey, destructive):
    def state():
        streams = valkey.keys(f"*{topic}*")
        return sorted((key, valkey.dump(key)) for key in streams)

    arguments = [word.format(topic=topic) for word in destructive]
    valkey.execute_command("XGROUP", "CREATECONSUMER", f"stream:topic:{topic}:p:0", "billing", "gone")
    before = state()

    unconfirmed = run(*arguments)
    assert unconfirmed.code == 6
    assert "--yes" in unconfirmed.err
    rehearsed = run(*arguments, "--dry-run", "--json")
    assert (rehearsed.code, rehearsed.json["is_dry_run"]) == (0, True)
    assert state() == before

    assert run(*arguments, "--yes").code == 0
    assert state() != before


def test_a_deleted_topic_is_gone_with_everything(run, filled, valkey):
    deleted = run("topics", "delete", filled, "--yes", "--json").json

    assert deleted == {
        "name": filled,
        "messages": 6,
        "dead_letters": 0,
        "groups": ["billing"],
        "is_dry_run": False,
    }
    # An epoch stays, so that a worker that slept through this does not meet its own number again.
    assert [key for key in valkey.keys(f"*{filled}*") if b":epoch:" not in key] == []
    assert run("stats", filled).code == 4


def test_a_group_is_moved_and_tells_what_that_means(run, filled):
    again = run("groups", "reset", filled, "billing", "--to", "start", "--yes", "--json").json
    skipped = run("groups", "reset", filled, "billing", "--to", "end", "--dry-run", "--json").json

    assert sum(one["delivered_again"] for one in again["partitions"]) == 3
    assert sum(one["skipped"] for one in skipped["partitions"]) == 6
    assert run("stats", filled, "--json").json["topics"][0]["groups"][0]["lag"] == 6
    assert run("groups", "reset", filled, "billing", "--to", "2026-08-22T10:00", "--dry-run").code == 0
    assert run("groups", "reset", filled, "billing", "--to", "yesterday", "--dry-run").code == 2


def test_a_group_with_pending_messages_is_deleted_by_force_only(run, stream, valkey_url):
    fill(run, stream, 1)
    with RedisStreamsQueue.from_url(valkey_url, QueueConfig(stream, "billing", "anna")) as queue:
        queue.read(50)

    assert run("groups", "delete", stream, "billing", "--yes").code == 4
    assert run("groups", "delete", stream, "billing", "--force", "--yes").code == 0
    assert run("groups", "list", stream, "--json").json["groups"] == []
    assert run("groups", "delete", stream, "nobody", "--yes").code == 4


def test_letters_are_shown_in_full_and_replayed_once(run, letters, topic):
    first = letters[0]
    shown = run("dlq", "show", topic, first, "--json").json
    assert (shown["payload"], shown["group"], shown["error_message"]) == ({"n": 1}, "billing", "given up")
    assert "given up" in run("dlq", "show", topic, first).out

    rehearsed = run("dlq", "replay", topic, first, "1-1", "--dry-run", "--json")
    assert (rehearsed.json["replayed"], rehearsed.json["not_found"]) == (1, ["1-1"])
    assert run("dlq", "show", topic, first).code == 0
    replayed = run("dlq", "replay", topic, first, "--yes", "--json")
    again = run("dlq", "replay", topic, first, "--yes", "--json")

    assert (replayed.code, replayed.json["replayed"]) == (0, 1)
    assert (again.code, again.json["replayed"], again.json["not_found"]) == (1, 0, [first])
    assert run("dlq", "show", topic, first).code == 4


def test_letters_of_a_stream_are_seen_and_replayed_as_those_of_a_topic(run_on_each, stream, make_queue):
    fill(run_on_each, stream, 2)
    messages = make_queue().read(50, count=2)
    database = ("--database", "sqlite:///x.db", "--consumer", "worker-1")
    ran = drain(run_on_each, stream, "refuse_three", *database, "--max-deliveries", "1")
    assert (ran.code, "2 dead lettered" in ran.out) == (1, True)

    listed = run_on_each("dlq", "list", stream, "--json").json
    first, second = (letter["id"] for letter in listed["letters"])
    shown = run_on_each("dlq", "show", stream, first, "--json").json
    assert (listed["count"], shown["payload"], shown["original_id"]) == (2, {"n": 1}, messages[0].id)
    assert run_on_each("stats", stream, "--json").json["topics"][0]["dead_letters"] == 2
    assert run_on_each("watch", stream, "--once", "--json").json["dead_letters"] == 2
    assert f"{stream}: 2 dead letters" in run_on_each("doctor", stream).out

    assert run_on_each("dlq", "replay", stream, first, "--yes", "--json").json["replayed"] == 1
    assert run_on_each("dlq", "purge", stream, second, "--yes", "--json").json["purged"] == 1
    pending = run_on_each("pending", stream, "--group", "billing", "--json").json["entries"]
    assert [(entry["id"], entry["consumer"]) for entry in pending] == [(messages[0].id, "replay")]
    assert f"{stream}: 2 dead letters" not in run_on_each("doctor", stream).out


def test_letters_are_filtered_and_paged(run, letters, topic):
    page = run("dlq", "list", topic, "--limit", "2", "--json").json
    rest = run("dlq", "list", topic, "--after", page["after"], "--json").json

    assert [one["id"] for one in page["letters"] + rest["letters"]] == letters
    assert page["count"] == 3
    assert run("dlq", "list", topic, "--error-type", "Other", "--json").json["letters"] == []
    assert run("dlq", "list", topic, "--until", "2020-01-01", "--json").json["letters"] == []
    assert "3 of 3 dead letters" in run("dlq", "list", topic).out


def test_letters_are_purged_by_id_and_by_age(run, letters, topic):
    assert run("dlq", "purge", topic, letters[0], "--yes", "--json").json["purged"] == 1
    assert run("dlq", "purge", topic, "--older-than", "1h", "--yes", "--json").json["purged"] == 0
    assert run("dlq", "purge", topic, "--all", "--yes", "--json").json["purged"] == 2
    assert run("dlq", "purge", topic, "--yes").code == 2


def test_trim_removes_what_every_group_has_finished_and_tells_it_before(
    run_on_each, stream, client, tmp_path
):
    fill(run_on_each, stream, 10)
    drain(run_on_each, stream, "accept", "--database", "sqlite:///x.db", "--max-messages", "6")

    rehearsed = run_on_each("trim", stream, "--keep", "0", "--dry-run", "--json").json
    assert (rehearsed["removed"], client.xlen(stream)) == (5, 10)
    trimmed = run_on_each("trim", stream, "--keep", "0", "--yes", "--json").json

    assert (trimmed["removed"], client.xlen(stream)) == (5, 5)
    assert run_on_each("trim", stream).code == 4


def test_pending_messages_are_shown_page_by_page(run, stream, valkey_url):
    fill(run, stream, 5)
    with RedisStreamsQueue.from_url(valkey_url, QueueConfig(stream, "billing", "anna")) as queue:
        ids = [msg.id for msg in queue.read(50, count=5)]

    first = run("pending", stream, "-g", "billing", "--sort", "id", "--limit", "3", "--json").json
    second = run(
        "pending", stream, "-g", "billing", "--sort", "id", "--cursor", first["cursor"], "--json"
    ).json

    assert [entry["id"] for entry in first["entries"] + second["entries"]] == ids
    assert {entry["consumer"] for entry in first["entries"]} == {"anna"}
    assert "anna" in run("pending", stream, "-g", "billing").out
    assert run("pending", stream, "-g", "billing", "--min-idle", "1h", "--json").json["entries"] == []
    assert run("pending", stream, "-g", "billing", "--sort", "age").code == 2
    assert run("pending", stream, "-g", "nobody").code == 4


def test_what_was_handed_back_is_shown_as_free_and_not_by_an_idle_time(run, stream, valkey_url):
    fill(run, stream, 1)
    with RedisStreamsQueue.from_url(valkey_url, QueueConfig(stream, "billing", "anna")) as queue:
        queue.hand_back(queue.read(50))

    shown = run("pending", stream, "-g", "billing").out.splitlines()[1].split()

    assert shown[2:] == ["anna", "free", "0"]


def test_pruning_forgets_those_who_hold_nothing(run, stream, valkey_url, valkey):
    fill(run, stream, 1)
    for name in ("holds-one", "gone"):
        with RedisStreamsQueue.from_url(valkey_url, QueueConfig(stream, "billing", name)) as queue:
            queue.read(50)

    pruned = run("consumers", "prune", stream, "-g", "billing", "--yes", "--json").json

    assert [one["name"] for one in pruned["pruned"]] == ["gone"]
    listed = run("consumers", "list", stream, "-g", "billing", "--json").json["consumers"]
    assert [(one["name"], one["pending"]) for one in listed] == [("holds-one", 1)]


def test_stats_tell_every_topic_and_a_lag_that_nobody_knows_is_no_zero(run, filled, valkey):
    told = run("stats", "--json").json
    (mine,) = [one for one in told["topics"] if one["name"] == filled]
    assert (mine["length"], mine["groups"][0]["lag"], mine["groups"][0]["pending"]) == (6, 3, 0)
    stream = Topics(valkey).open(filled).keys.stream(0)
    valkey.xgroup_create(stream, "lost", "0-0")
    with valkey.pipeline(transaction=False) as pipeline:
        for n in range(1_100):
            pipeline.xadd(stream, {"data": f'{{"n": {n}}}'})
        pipeline.execute()
    valkey.xdel(stream, valkey.xrange(stream, count=800)[-1][0])

    groups = run("stats", filled, "--json").json["topics"][0]["groups"]
    assert {one["group"]: one["lag"] for one in groups}["lost"] is None
    assert "unknown" in run("stats", filled).out
    assert f"{filled} p1" in run("stats", filled, "--partitions").out


def test_watch_tells_rates_between_two_looks(run_on_each, stream, client):
    fill(run_on_each, stream, 2)
    drain(run_on_each, stream, "accept", "--database", "sqlite:///x.db")

    looks = run_on_each("watch", stream, "--samples", "2", "--interval", "0.1", "--json").out.splitlines()

    first, second = map(json.loads, looks)
    assert (first["lag"], first["pending"], first["length"]) == (0, 0, 2)
    assert first["enqueued_per_s"] is None
    assert (second["enqueued_per_s"], second["handled_per_s"]) == (0.0, 0.0)
    assert f"{stream}/billing: lag 0" in run_on_each("watch", stream, "--once").out


def test_what_is_not_there_has_its_own_exit_code(run, stream):
    for arguments in (("stats",), ("groups", "list"), ("trim", "--keep", "1"), ("doctor",)):
        ran = run(*arguments, stream) if "--keep" not in arguments else run("trim", stream, "--keep", "1")

        assert ran.code == 4, ran.err
        assert "is not there" in ran.err


def test_the_policies_of_a_topic_are_changed_by_a_command_of_their_own(run, topic):
    run("topics", "create", topic, "--keep", "5")

    refused = run("topics", "create", topic, "--keep", "6")
    changed = run("topics", "policies", topic, "--keep", "6", "--trim-every", "60s", "--json")

    assert refused.code != 0
    assert "exists with other policies" in refused.err
    assert changed.json["policies"] == {
        "retention_length": 6,
        "retention_ms": None,
        "dead_letters": None,
        "trim_every_s": 60,
    }
    assert run("topics", "create", topic, "--keep", "6", "--trim-every", "60s").code == 0


def test_delayed_messages_are_listed_and_cancelled(run, topic):
    run("topics", "create", topic)
    run("enqueue", topic, '{"n": 1}', "--delay", "5m")

    listed = run("delayed", "list", topic, "--json").json
    (message,) = listed["messages"]
    stats = run("stats", topic, "--json").json["topics"][0]

    assert (listed["count"], stats["delayed"], message["payload"], message["group"]) == (1, 1, {"n": 1}, None)
    assert run("delayed", "cancel", topic, message["name"], "--yes", "--json").json["cancelled"] == 1
    assert run("delayed", "cancel", topic, message["name"], "--yes").code == 1
    assert run("delayed", "list", topic, "--json").json["count"] == 0


def test_letters_are_trimmed_by_options_and_by_the_policy_of_the_topic(run, letters, topic):
    assert run("dlq", "trim", topic, "--yes").code == 4
    assert run("dlq", "trim", topic, "--keep", "2", "--dry-run", "--json").json["removed"] == 1
    assert run("dlq", "trim", topic, "--keep", "2").code == 6
    assert (
        run("dlq", "trim", topic, "--keep", "2", "--keep-for", "1h", "--yes", "--json").json["removed"] == 0
    )
    assert run("dlq", "trim", topic, "--keep", "2", "--yes", "--json").json["removed"] == 1

    changed = run("topics", "policies", topic, "--keep-letters", "1", "--trim-every", "1m", "--json").json
    assert changed["policies"]["dead_letters"] == {"retention_length": 1, "retention_ms": None}
    assert run("dlq", "trim", topic, "--yes", "--json").json["removed"] == 1
    assert run("dlq", "list", topic, "--json").json["count"] == 1


def test_a_group_is_created_at_a_position_once(run_on_each, topic):
    run_on_each("topics", "create", topic, "--partitions", "2")
    fill(run_on_each, topic, 4)

    assert run_on_each("groups", "create", topic, "billing", "--at", "end", "--json").json["is_created"]
    assert not run_on_each("groups", "create", topic, "billing", "--json").json["is_created"]
    assert run_on_each("groups", "create", topic, "other", "--at", "sometime").code == 2
    assert drain(run_on_each, topic, "accept_alone", "--json").json["read"] == 0

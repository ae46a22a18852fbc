"""docs/wire-format.md is what is written: its keys are those of the code, its fields those of a real run."""

from __future__ import annotations

import inspect
import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from conquiet import DrainLimits, EmbeddedServer
from conquiet.mq import DeadLetter, Producer, Topics, drain_partition
from conquiet.mq.keys import Layout, RegistryKeys, TopicKeys
from conquiet.queue import StreamWriter, open_client
from tests.upgrade import record

PAGE = (Path(__file__).parents[3] / "docs" / "wire-format.md").read_text()
#: A partition that is in no other name.
PARTITION = 77


def chapter(title):
    """The text from a heading to the next one of its level or above."""
    level, rest = PAGE.partition(f"# {title}\n")[0].rpartition("\n")[2], PAGE.partition(f"# {title}\n")[2]
    return re.split(rf"^#{{1,{len(level) + 1}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(title):
    lines = [line for line in chapter(title).splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines]


def written_keys(is_cluster):
    """Every key that the code can spell, as the page writes it."""
    layout: Layout = "hash_tagged" if is_cluster else "single"
    keys = set()
    for names in (RegistryKeys(is_cluster), TopicKeys("TOPIC", layout, is_cluster)):
        for name, member in inspect.getmembers(type(names)):
            if name.startswith("_") or name in ("topic", "layout", "is_cluster", "has_one_slot"):
                continue
            values = {"group": "GROUP", "partition": PARTITION, "topic": "TOPIC"}
            wanted = [] if isinstance(member, property) else list(inspect.signature(member).parameters)[1:]
            key = (
                getattr(names, name)
                if isinstance(member, property)
                else getattr(names, name)(*(values[one] for one in wanted))
            )
            keys.add(key.replace(str(PARTITION), "N"))
    return keys


@pytest.mark.parametrize(("column", "is_cluster"), [(0, False), (1, True)])
def test_every_key_of_a_topic_is_on_the_page_and_no_other_is(column, is_cluster):
    assert {row[column] for row in rows("Keys of a topic")} == written_keys(is_cluster)


def pattern_of(template):
    parts = re.split(r"(TOPIC|GROUP|STREAM|WRITE|TASK|ID|\bN\b)", template)
    return re.compile("".join(".+" if index % 2 else re.escape(part) for index, part in enumerate(parts)))


def lose_a_message(client):
    writer = StreamWriter(client, record.STREAM)
    writer.enqueue({"n": "kept"})
    before = client.dump(record.STREAM)
    writer.enqueue({"n": "lost"})
    # As a replica that lagged.
    client.restore(record.STREAM, 0, before, replace=True)
    writer.ends.check(record.STREAM)


#: As another program writes it.
SPACED = '{ "n": 1.50, "n": 1.50 }'


def refuse_spaced(msg):
    return DeadLetter("refused") if msg.data == SPACED.encode() else None


@pytest.fixture(scope="module")
def left():
    """What a real run leaves on a server: types by key, and field names by record."""
    with EmbeddedServer() as server, open_client(server.url) as client:
        record.leave_everything(client)
        Producer(client, create_streams=True).send("a/plain:stream", {"n": 1})
        # The malformed entry becomes a dead letter.
        lose_a_message(client)
        topic, limits = Topics(client).open(record.TOPIC), DrainLimits(idle_ms=50)
        client.xadd(topic.keys.stream(0), {"data": SPACED})
        drain_partition(topic, 0, record.SHIPPING, refuse_spaced, limits=limits)
        types = {key.decode(): client.type(key).decode() for key in client.scan_iter("*")}
        fields: defaultdict[str, set[str]] = defaultdict(set)

        def add(kind, names):
            fields[kind] |= {name.decode() if isinstance(name, bytes) else name for name in names}

        for key, kind in types.items():
            if key.endswith(":meta"):
                add("Meta", client.hkeys(key))
                policies = client.hget(key, "policies")
                add("policies", json.loads(policies))
            elif key.endswith("}:end"):
                add("End mark", (re.sub(rb"\d+", b"EPOCH", name) for name in client.hkeys(key)))
                add("Loss", json.loads(client.hget(key, "loss:1")))
            elif ":lease:" in key:
                add("Lease", client.hkeys(key))
            elif ":failures:" in key:
                for one in client.hvals(key):
                    add("Failure record", json.loads(one))
            elif ":retry:item:" in key:
                for one in client.hvals(key):
                    add("Envelope", json.loads(one.partition(b":")[2]))
            elif kind == "stream":
                for _, entry in client.xrange(key):
                    add("entry", entry)
                    is_ours = entry[b"data"].startswith(b"{") and entry[b"data"] != SPACED.encode()
                    if is_ours and key != record.STREAM:
                        add("Dead letter" if key.endswith("dlq") else "Envelope", json.loads(entry[b"data"]))
        return types, fields


def test_every_key_that_a_run_leaves_is_on_the_page_with_its_type(left):
    known = [(pattern_of(row[0]), row[2]) for row in rows("Keys of a topic")]
    known += [(pattern_of(row[0]), row[1]) for row in rows("Keys of a plain stream") if row[0] != "STREAM"]
    known += [(re.compile(re.escape(record.STREAM)), "stream"), (re.compile("a/plain:stream"), "stream")]

    for key, kind in left[0].items():
        assert any(kind == known_kind and pattern.fullmatch(key) for pattern, known_kind in known), key


@pytest.mark.parametrize(
    "title", ["Envelope", "Dead letter", "Failure record", "Lease", "End mark", "Loss", "Meta"]
)
def test_the_fields_that_a_run_leaves_are_those_of_the_page(left, title):
    assert left[1][title] == {row[0] for row in rows(title)}


def test_an_entry_has_one_field_and_policies_those_of_the_page(left):
    (policies,) = (row[2] for row in rows("Meta") if row[0] == "policies")

    assert left[1]["entry"] == {"data"}
    assert left[1]["policies"] == set(re.findall(r"`(\w+)`", f"`{policies}`"))

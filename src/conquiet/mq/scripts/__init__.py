"""The Lua scripts of the MQ, each behind one typed function that gives it its KEYS and ARGV.

Those that a lease fences are behind one method each of `LeaseStore` and `LeasedPartition` in `mq.own`.
Whatever Redis raises is a `QueueError` that names the topic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import repeat
from typing import Any, Literal, NamedTuple, Protocol

from conquiet.errors import QueueError
from conquiet.mq.keys import RegistryKeys, TopicKeys
from conquiet.queue.connection import Client, as_text, forget_connections, visible_errors
from conquiet.queue.lua import Argument, LuaScript
from conquiet.queue.scripts import Added

#: "count" deletes nothing, "delete" deletes unless something is pending, "force" deletes.
DeleteMode = Literal["count", "delete", "force"]


class ScriptTopic(Protocol):
    """What a script needs of a topic."""

    @property
    def name(self) -> str: ...
    @property
    def client(self) -> Client: ...
    @property
    def keys(self) -> TopicKeys: ...


class OnceEntry(NamedTuple):
    """One entry to add; without a dedupe id it is added whatever was added before."""

    partition: int
    dedupe_id: str | None
    data: bytes


class Moved(NamedTuple):
    """How a group was moved; a count is `None` if it is above the limit."""

    last_delivered_id: str
    new_last_delivered_id: str
    delivered_again: int | None
    skipped: int | None


@cache
def script(name: str) -> LuaScript:
    """The script `name`.lua behind fence.lua, read once."""
    folder = files(__name__)
    return LuaScript(folder.joinpath("fence.lua").read_bytes() + folder.joinpath(f"{name}.lua").read_bytes())


def run_script(
    topic: ScriptTopic,
    name: str,
    keys: Sequence[str],
    arguments: Sequence[Argument],
    *,
    group: str | None = None,
    seal: Sequence[str | int] = (),
) -> Any:
    """Run a script; of a reply that begins with a seal, return what follows it.

    Raises:
        QueueError: also if the reply is that of another call. That happens if another call was interrupted
            between its request and its reply; idle connections are dropped, as one of them is out of step.
    """
    with visible_errors(name, stream=topic.name, group=group):
        reply = script(name).run(topic.client, keys, arguments)
    if not seal:
        return reply
    expected = [str(part).encode() for part in seal]
    if isinstance(reply, list) and reply[: len(expected)] == expected:
        return reply[len(expected) :]
    forget_connections(topic.client)
    reason = "the reply was that of another call, which was interrupted before it could read it"
    raise QueueError(name, stream=topic.name, group=group, reason=reason)


def create_topic(
    client: Client,
    registry: RegistryKeys,
    keys: TopicKeys,
    partitions: int,
    *,
    policies: str,
    mode: Literal["create", "grow"],
) -> int:
    """Create or grow a topic, and the streams that its partitions lack.

    Returns how many partitions it has now: 0 if there is nothing to grow, -1 while it is being deleted.
    """
    name = keys.topic
    used = [registry.registry, registry.meta(name), registry.partitions(name), registry.deleting(name)]
    streams = [keys.stream(partition) for partition in range(partitions)]
    arguments = (name, "", keys.layout, policies, mode, *streams)
    is_one_slot = keys.layout == "single"
    with visible_errors(mode, stream=name, group=None):
        reply = script("create_topic").run(client, [*used, *streams] if is_one_slot else used, arguments)
        if reply[1] == partitions and not is_one_slot:
            for stream in streams:
                script("create_stream").run(client, [stream], ())
    return int(reply[1])


def begin_delete(client: Client, registry: RegistryKeys, name: str) -> tuple[int, str] | None:
    """Take a topic out of the registry; returns its partition count and layout, `None` if it is not there."""
    keys = [registry.registry, registry.meta(name), registry.deleting(name), registry.partitions(name)]
    keys.append(registry.deleted)
    with visible_errors("delete", stream=name, group=None):
        count, layout = script("begin_delete").run(client, keys, (name,))
    return None if count is None else (int(count), layout.decode())


def end_delete(client: Client, registry: RegistryKeys, name: str) -> None:
    """Forget a topic whose keys are deleted, but for when that was."""
    keys = [registry.deleting(name), registry.partitions(name), registry.deleted]
    with visible_errors("delete", stream=name, group=None):
        script("end_delete").run(client, keys, ())


def delete_partitions(
    topic: ScriptTopic, partitions: Sequence[int], keys: Sequence[str], groups: Collection[bytes]
) -> list[bytes]:
    """Delete partitions that share a slot, with these keys; if other groups are there, only return those."""
    streams = [topic.keys.stream(partition) for partition in partitions]
    used = [topic.keys.groups(partitions[0]), *streams, *keys]
    unknown: list[bytes] = run_script(topic, "delete_partitions", used, (len(streams), *groups))
    return unknown


def set_policies(client: Client, registry: RegistryKeys, name: str, policies: str) -> bool:
    """Change the policies of a topic; `False` if it is not there."""
    with visible_errors("set policies", stream=name, group=None):
        return bool(script("set_policies").run(client, [registry.meta(name)], ("", policies)))


def send_once(topic: ScriptTopic, entry: OnceEntry, window_ms: int) -> Added | None:
    """Add one entry, unless its dedupe id was added within the window; `None` if its stream is not there."""
    reply = run_script(topic, "send_once", *_send_once_call(topic, [entry], window_ms))
    return Added(as_text(reply[0]), bool(reply[1])) if reply else None


def send_all_once(
    topic: ScriptTopic, entries: Sequence[OnceEntry], window_ms: int
) -> list[Added | Exception | None]:
    """Add entries in order, in one round trip.

    Each entry of a partition that failed has its error, of one whose stream is not there `None`.
    """
    by_partition: dict[int, list[OnceEntry]] = {}
    for entry in entries:
        by_partition.setdefault(entry.partition, []).append(entry)
    calls = [_send_once_call(topic, some, window_ms) for some in by_partition.values()]
    with visible_errors("send_once", stream=topic.name, group=None):
        replies = script("send_once").run_all(topic.client, calls)
    results: dict[int, Iterator[Added | Exception | None]] = {}
    for partition, reply in zip(by_partition, replies, strict=True):
        if isinstance(reply, Exception) or not reply:
            results[partition] = repeat(reply or None)
        else:
            pairs = zip(reply[::2], reply[1::2], strict=True)
            results[partition] = (Added(as_text(entry_id), bool(is_new)) for entry_id, is_new in pairs)
    return [next(results[entry.partition]) for entry in entries]


def _send_once_call(
    topic: ScriptTopic, entries: Sequence[OnceEntry], window_ms: int
) -> tuple[list[str], list[Argument]]:
    keys, partition = topic.keys, entries[0].partition
    arguments: list[Argument] = [window_ms, ""]
    for entry in entries:
        arguments += (entry.dedupe_id or "", entry.data)
    used = [keys.stream(partition), keys.deduped(partition), keys.deduped_until(partition)]
    return used + _needed_stream(topic, partition), arguments


def delay(topic: ScriptTopic, partition: int, name: str, data: bytes, delay_ms: int) -> bool:
    """Keep an entry under a name, to be added to its partition later; `False` if its stream is not there."""
    arguments = ("", delay_ms, name, f"{partition}:".encode() + data)
    keys = _delayed_keys(topic, partition) + _needed_stream(topic, partition)
    return run_script(topic, "delay", keys, arguments) is not None


def _needed_stream(topic: ScriptTopic, partition: int) -> list[str]:
    # A plain stream comes with its first entry; a topic's stream is there, or the topic was deleted.
    return [] if topic.keys.layout == "bare_stream" else [topic.keys.stream(partition)]


def forget_delayed(topic: ScriptTopic, partition: int, names: Sequence[bytes]) -> int:
    """Remove delayed entries by their names, and return how many there were."""
    forgotten: int = run_script(topic, "forget_delayed", _delayed_keys(topic, partition), names)
    return forgotten


def move_due(
    topic: ScriptTopic, partitions: Sequence[int], limit: int, *, now_ms: int | None = None
) -> tuple[int, list[bytes]]:
    """Add delayed entries that are due to their partitions, which share one delayed set.

    Returns how many were added, and the names of those that could not be.
    """
    used = _delayed_keys(topic, partitions[0])
    streams = [topic.keys.stream(partition) for partition in partitions]
    arguments = ("" if now_ms is None else now_ms, limit, *partitions)
    moved, stuck = run_script(topic, "move_due", [*used, *streams], arguments, seal=used[:1])
    return moved, stuck


def _delayed_keys(topic: ScriptTopic, partition: int) -> list[str]:
    return [topic.keys.delayed(partition), topic.keys.delayed_items(partition)]


class LetterAddress(NamedTuple):
    """Where one dead letter is."""

    stream: str
    letter_id: str


def replay(
    topic: ScriptTopic,
    letter: LetterAddress,
    *,
    partition: int,
    data: bytes,
    group: str | None,
    caller: str,
    dry_run: bool,
) -> tuple[Literal["replayed", "no letter", "no group"], str]:
    """Exchange a dead letter for a new entry, for one group or for all, and return the entry's id."""
    keys = [letter.stream, topic.keys.stream(partition), topic.keys.replayed(partition)]
    arguments = (letter.letter_id, data, caller, group or "", int(dry_run))
    state, *added = run_script(topic, "replay", keys, arguments, group=group)
    return state.decode(), b"".join(added).decode()


def replay_in_place(
    topic: ScriptTopic, letter_id: str, *, group: str, entry_id: str, caller: str, dry_run: bool
) -> Literal["replayed", "no letter", "trimmed", "no group"]:
    """Make the entry of a plain stream's dead letter pending again, and remove the letter."""
    keys = topic.keys
    used = [
        keys.dead_letters(0),
        keys.stream(0),
        keys.replayed(0),
        keys.lease(group, 0),
        keys.waiting(group, 0),
    ]
    arguments = (letter_id, entry_id, group, caller, int(dry_run))
    return run_script(topic, "replay_in_place", used, arguments, group=group).decode()  # type: ignore[no-any-return]


def trim(
    topic: ScriptTopic,
    stream: str,
    groups: Collection[bytes],
    *,
    length: int | None,
    age_ms: int | None,
    limit: int,
    dry_run: bool,
    without_groups: bool,
) -> tuple[int, bool, tuple[str, ...]]:
    """Remove finished entries of a stream, or count them.

    Returns how many, whether there may be more, and the groups that have not begun there.
    """
    keys = [stream]
    kept = ("" if length is None else length, "" if age_ms is None else age_ms)
    arguments = (*kept, "", limit, int(dry_run), int(without_groups), *groups)
    removed, has_more, missing = run_script(topic, "trim", keys, arguments, seal=keys)
    return removed, bool(has_more), tuple(map(as_text, missing))


def reset_group(
    topic: ScriptTopic, partition: int, group: str, *, after: str, dry_run: bool, count_limit: int
) -> Moved | None:
    """Let a group of a partition go on after an entry; `None` if the partition has no stream."""
    arguments = (group, after, int(dry_run), count_limit)
    reply = run_script(topic, "reset_group", [topic.keys.stream(partition)], arguments, group=group)
    if reply is None:
        return None
    again, skipped = (None if number < 0 else number for number in reply[2:])
    return Moved(reply[0].decode(), reply[1].decode(), again, skipped)


def create_groups(topic: ScriptTopic, partitions: Sequence[int], group: str, *, after: str) -> bool | None:
    """Create a group in partitions that share a slot, unless one of them has it; `None` without a stream."""
    streams = [topic.keys.stream(partition) for partition in partitions]
    arguments = (group, after, int(topic.keys.layout == "bare_stream"))
    state = run_script(topic, "create_groups", streams, arguments, group=group)
    return None if state == b"no stream" else bool(state)


def prune_consumers(
    topic: ScriptTopic, partition: int, group: str, *, members: Sequence[bytes], dry_run: bool
) -> list[str]:
    """Delete consumers with nothing pending that are neither members nor owner, and return their names."""
    keys = [topic.keys.stream(partition), topic.keys.lease(group, partition)]
    names = run_script(topic, "prune_consumers", keys, (group, int(dry_run), *members), group=group)
    return [as_text(name) for name in names]


def delete_group(topic: ScriptTopic, partitions: Sequence[int], group: str, mode: DeleteMode) -> list[int]:
    """Delete a group from partitions that share a slot; returns how many entries are pending in each."""
    keys = topic.keys
    used = [
        key
        for partition in partitions
        for key in (
            keys.stream(partition),
            keys.lease(group, partition),
            keys.waiting(group, partition),
            keys.failures(group, partition),
        )
    ]
    pending: list[int] = run_script(topic, "delete_group", used, (group, mode), group=group)
    return pending

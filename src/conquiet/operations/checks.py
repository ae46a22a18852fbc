"""The doctor's checks: facts in, findings out; no Redis, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from conquiet.mq.look.stats import dead_consumers
from conquiet.operations.database import DatabaseFacts, check_database
from conquiet.operations.facts import GroupFacts, ServerFacts, TopicFacts
from conquiet.operations.findings import Finding, Level, loss_finding
from conquiet.operations.queues import QueueFacts, check_queue

_LEVELS: tuple[Level, ...] = ("ok", "note", "warning", "error")
_OLDEST_SERVER = (6, 2)
_SKEW_WARNING_MS = 1_000
_SKEW_ERROR_MS = 60_000
_OLD_PENDING_MS = 60 * 60_000
_MANY_EMPTY_CONSUMERS = 20
_LONG_STREAM = 100_000


def worst_level(findings: Iterable[Finding]) -> Level:
    """The worst level of all; "ok" of none."""
    return max((finding.level for finding in findings), key=_LEVELS.index, default="ok")


def diagnose(
    servers: Sequence[ServerFacts],
    topics: Sequence[TopicFacts] = (),
    databases: Sequence[DatabaseFacts] = (),
    queues: Sequence[QueueFacts] = (),
) -> list[Finding]:
    """Every check over every fact; a check that finds nothing wrong has a finding, too."""
    findings: list[Finding] = []
    for server in servers:
        for check in (check_version, check_persistence, check_eviction, check_replication, check_clock):
            findings += check(server)
    for topic in topics:
        problems = list(check_topic(topic))
        for group in topic.groups:
            problems += check_group(topic, group)
        groups = f"{len(topic.groups)} group{'s' if len(topic.groups) != 1 else ''}"
        findings += problems or [Finding("ok", "groups", topic.name, f"{groups}, all well")]
    for queue in queues:
        text = f"{queue.unfinished} tasks, {queue.consumers} consumers, all well"
        findings += list(check_queue(queue)) or [Finding("ok", "queues", f"queue {queue.name}", text)]
    for database in databases:
        findings += check_database(database)
    return findings


def check_version(server: ServerFacts) -> Iterator[Finding]:
    """Is the server new enough, and has it every command?"""
    name, address = f"{server.product} {server.version}", server.address
    if server.redis_version < _OLDEST_SERVER:
        text = f"{name} is older than Redis 6.2, which conquiet needs"
        yield Finding(
            "error", "version", address, text, "Move to Redis 6.2 or later, or Valkey 7.2 or later."
        )
    elif server.redis_version < (7, 0):
        text = f"{name} does not know a group's lag; conquiet counts it, up to a limit"
        yield Finding("note", "version", address, text, "Redis 7.0 and Valkey 7.2 know it.")
    else:
        newer = f"; it also has {', '.join(server.newer_commands)}" if server.newer_commands else ""
        yield Finding("ok", "version", address, name + newer)
    if server.missing_commands is None:
        text = "COMMAND is forbidden by ACL: whether every command is there is not known"
        yield Finding("note", "commands", address, text)
    elif server.missing_commands:
        text = f"the server does not have {', '.join(server.missing_commands)}"
        to_do = "They were renamed, or the service does not offer them; conquiet cannot work without them."
        yield Finding("error", "commands", address, text, to_do)


def check_persistence(server: ServerFacts) -> Iterator[Finding]:
    """What does a crash of the server lose?"""
    to_do: str | None = "CONFIG SET appendonly yes, and write it to the server's config file."
    match server.config:
        case None:
            is_on = bool(server.info.get("aof_enabled"))
            level: Level = "note" if is_on else "warning"
            text = (
                f"CONFIG is not allowed ({server.config_refusal}); INFO says that the append-only file is "
                f"{'on, and not how often it is synced' if is_on else 'off'}"
            )
            to_do = "Ask the server's operator for appendonly, appendfsync and save, or allow +config|get."
        case {"appendonly": "yes", "appendfsync": "always"}:
            level, text, to_do = "ok", "what was answered is on disk (appendfsync always)", None
        case {"appendonly": "yes", "appendfsync": "no"}:
            level, text = "warning", "a crash of the machine loses what was not yet synced (appendfsync no)"
            to_do = "CONFIG SET appendfsync everysec, or always."
        case {"appendonly": "yes"}:
            level, fsync = "note", server.config.get("appendfsync")
            text = f"a crash of the machine loses up to a second of messages (appendfsync {fsync})"
            to_do = "CONFIG SET appendfsync always if that is too much; it costs throughput."
        case {"save": str(save)} if save:
            level, text = "error", f"only snapshots are written (save {save}): a crash loses what is newer"
        case _:
            level = "error"
            text = "nothing is written to disk: every restart of the server loses all messages"
    yield Finding(level, "persistence", server.address, text, to_do)
    statuses = {"aof_last_write_status": "append-only file", "rdb_last_bgsave_status": "snapshot"}
    for status, file in statuses.items():
        if server.info.get(status, "ok") != "ok":
            text = f"the last write of the {file} failed"
            to_do = "See the server's log and its disk: until this is fixed a restart loses messages."
            yield Finding("error", "persistence", server.address, text, to_do)


def check_eviction(server: ServerFacts) -> Iterator[Finding]:
    """Can the server delete streams when it is full?"""
    evicted, limit, used = (_number(server.info.get(n)) for n in ("evicted_keys", "maxmemory", "used_memory"))
    if evicted:
        text = f"the server has evicted {evicted} keys since its start; streams may be among them"
        to_do = "CONFIG SET maxmemory-policy noeviction, and look for missing streams."
        yield Finding("error", "eviction", server.address, text, to_do)
    policy = (server.config or {}).get("maxmemory-policy") or server.info.get("maxmemory_policy")
    if policy == "noeviction":
        text = "a full server refuses writes and evicts nothing (noeviction)"
        yield Finding("ok", "eviction", server.address, text)
        if limit and used > 0.9 * limit:
            text = f"{used * 100 // limit} % of maxmemory is used: soon the server will refuse to enqueue"
            to_do = "Trim what every group has finished (conquiet trim), or give it more memory."
            yield Finding("warning", "memory", server.address, text, to_do)
    elif policy is None:
        text = "the server does not show its maxmemory-policy"
        yield Finding("warning", "eviction", server.address, text, "Make sure that it is noeviction.")
    else:
        text = f"maxmemory-policy is {policy}: a full server deletes streams and groups"
        text += "" if limit else ", and it has no maxmemory yet"
        to_do = "CONFIG SET maxmemory-policy noeviction, and keep caches on another server."
        yield Finding("error" if limit else "warning", "eviction", server.address, text, to_do)


def check_replication(server: ServerFacts) -> Iterator[Finding]:
    """Is this a primary?"""
    if server.info.get("role") == "slave":
        to_do = "Use the URL of the primary, or redis+sentinel:// which finds it."
        text = "this is a replica: it refuses every write"
        yield Finding("error", "replication", server.address, text, to_do)


def check_clock(server: ServerFacts) -> Iterator[Finding]:
    """Do the server's clock and this machine's agree?"""
    skew = abs(server.clock_skew_ms)
    if skew - server.clock_error_ms <= _SKEW_WARNING_MS:
        text = f"the clocks agree within {skew + server.clock_error_ms} ms"
        yield Finding("ok", "clock", server.address, text)
        return
    side = "ahead of" if server.clock_skew_ms > 0 else "behind"
    text = f"the server's clock is {skew / 1000:.1f} s {side} this machine's"
    to_do = "Run NTP on both: entry ids, ages and leases are by the server's clock, schedules by yours."
    yield Finding("error" if skew > _SKEW_ERROR_MS else "warning", "clock", server.address, text, to_do)


def check_topic(topic: TopicFacts) -> Iterator[Finding]:
    """Are there dead letters, messages without a reader, or entries without end?"""
    if topic.dead_letters:
        text = f"{topic.dead_letters} dead letters were neither replayed nor purged"
        to_do = f"conquiet dlq list {topic.name}; then dlq replay or dlq purge."
        yield Finding("warning", "dead-letters", topic.name, text, to_do)
    for loss in topic.losses:
        yield loss_finding(topic.name, loss)
    if not topic.groups and topic.length:
        text = f"{topic.length} messages and no group: no consumer reads them"
        to_do = "Start a consumer; a new group begins with the first message."
        yield Finding("note", "groups", topic.name, text, to_do)
    needed = max((group.pending + (group.lag or 0) for group in topic.groups), default=topic.length)
    if topic.length > _LONG_STREAM and topic.length > 2 * needed and not topic.has_retention:
        text = f"{topic.length} entries are kept and at most {needed} needed: memory grows without end"
        to_do = f"conquiet trim {topic.name} --keep 10000, regularly; or a retention policy."
        yield Finding("warning", "retention", topic.name, text, to_do)


def check_group(topic: TopicFacts, group: GroupFacts) -> Iterator[Finding]:
    """Do the consumers live, and does the group get on?"""
    subject, options = f"{topic.name}/{group.name}", f"{topic.name} --group {group.name}"
    inactive = dead_consumers(group.consumers, group.live)
    for consumer in inactive:
        if consumer.pending:
            text = (
                f"consumer {consumer.name} has {consumer.pending} messages pending and was last active "
                f"{_hours(consumer.idle_ms)} ago"
            )
            to_do = (
                "The next owner of its partition takes them over; on a plain stream: "
                f"conquiet claim-stale {options} --handler …"
            )
            yield Finding("warning", "dead-consumer", subject, text, to_do)
    if group.oldest_pending_age_ms is not None and group.oldest_pending_age_ms > _OLD_PENDING_MS:
        text = f"the oldest pending message is {_hours(group.oldest_pending_age_ms)} old"
        to_do = f"conquiet pending {options} shows at which consumer."
        yield Finding("warning", "old-pending", subject, text, to_do)
    if group.lag is None:
        text = "the lag is not known: entries were deleted, or there are too many to count"
        to_do = "Do not read it as zero. It is known again when the group reaches the stream's end."
        yield Finding("warning", "lag", subject, text, to_do)
    elif group.lag and len(inactive) == len(group.consumers) and not group.live:
        text = f"{group.lag} messages wait and the group has no consumer that is alive"
        to_do = (
            "Start one, or release what the group keeps from being trimmed: "
            f"conquiet groups delete {topic.name} {group.name}"
        )
        yield Finding("warning", "lag", subject, text, to_do)
    if group.most_owned is not None and group.most_owned < topic.partitions:
        text = (
            f"its consumers own at most {group.most_owned} of {topic.partitions} partitions, by their "
            "max_partitions: nobody reads the others"
        )
        to_do = "Start another consumer, or raise max_partitions."
        yield Finding("warning", "max-partitions", subject, text, to_do)
    empty = [consumer for consumer in inactive if not consumer.pending]
    if len(empty) >= _MANY_EMPTY_CONSUMERS:
        text = f"{len(empty)} consumers have ended, and the group still knows them"
        yield Finding("note", "consumers", subject, text, f"conquiet consumers prune {options}")


def _number(value: object) -> int:
    return int(value) if isinstance(value, int | float | str) and str(value).isdigit() else 0


def _hours(milliseconds: int) -> str:
    minutes = milliseconds // 60_000
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"

"""The doctor's judgements: facts in, findings out; no Redis, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conquiet.operations.facts import ServerFacts, TopicFacts
from conquiet.operations.findings import Finding
from conquiet.operations.group_checks import check_topic

_OLDEST_SERVER = (6, 2)
_SKEW_WARNING_MS = 1_000
_SKEW_ERROR_MS = 60_000


def diagnose(servers: Sequence[ServerFacts], topics: Sequence[TopicFacts] = ()) -> list[Finding]:
    """Every check over every fact; checks that are content say so, too."""
    found: list[Finding] = []
    for server in servers:
        for check in (check_version, check_persistence, check_eviction, check_replication, check_clock):
            found += check(server)
    for topic in topics:
        found += check_topic(topic)
    return found


def check_version(server: ServerFacts) -> Iterator[Finding]:
    """Is the server new enough, and has it every command?"""
    names = {"check": "version", "subject": server.address}
    told = f"{server.product} {server.version}"
    if server.redis_version < _OLDEST_SERVER:
        yield Finding(
            **names,
            level="error",
            text=f"{told} is older than Redis 6.2, which conquiet needs",
            to_do="Move to Redis 6.2 or later, or Valkey 7.2 or later.",
        )
    elif server.redis_version < (7, 0):
        yield Finding(
            **names,
            level="note",
            text=f"{told} does not know a group's lag; conquiet counts it, up to a limit",
            to_do="Redis 7.0 and Valkey 7.2 know it.",
        )
    else:
        newer = f"; it also has {', '.join(server.newer_commands)}" if server.newer_commands else ""
        yield Finding(**names, level="ok", text=f"{told}{newer}")
    if server.missing_commands is None:
        yield Finding(
            level="note",
            check="commands",
            subject=server.address,
            text="COMMAND is forbidden by ACL: whether every command is there is not known",
        )
    elif server.missing_commands:
        yield Finding(
            level="error",
            check="commands",
            subject=server.address,
            text=f"the server has no {', '.join(server.missing_commands)}",
            to_do="They were renamed, or the service does not offer them; conquiet cannot work without them.",
        )


def check_persistence(server: ServerFacts) -> Iterator[Finding]:
    """What does a crash of the server lose?"""
    yield from _check_saving(server)
    for field, what in (
        ("aof_last_write_status", "append-only file"),
        ("rdb_last_bgsave_status", "snapshot"),
    ):
        if server.info.get(field, "ok") != "ok":
            yield Finding(
                level="error",
                check="persistence",
                subject=server.address,
                text=f"the last write of the {what} failed",
                to_do="Look at the server's log and its disk: until this is mended a restart loses messages.",
            )


def _check_saving(server: ServerFacts) -> Iterator[Finding]:
    names = {"check": "persistence", "subject": server.address}
    if server.config is None:
        is_on = bool(server.info.get("aof_enabled"))
        yield Finding(
            **names,
            level="note" if is_on else "warning",
            text=f"CONFIG is not allowed ({server.config_refusal}); INFO says that the append-only file is "
            f"{'on, and not how often it is synced' if is_on else 'off'}",
            to_do="Ask whoever runs the server for appendonly, appendfsync and save, or allow +config|get.",
        )
        return
    if server.config.get("appendonly") == "yes":
        yield from _check_fsync(server)
    elif server.config.get("save"):
        yield Finding(
            **names,
            level="error",
            text=f"only snapshots are written (save {server.config['save']}): a crash loses what is newer",
            to_do="CONFIG SET appendonly yes, and write it to the server's config file.",
        )
    else:
        yield Finding(
            **names,
            level="error",
            text="nothing is written to disk: every restart of the server loses all messages",
            to_do="CONFIG SET appendonly yes, and write it to the server's config file.",
        )


def _check_fsync(server: ServerFacts) -> Iterator[Finding]:
    names = {"check": "persistence", "subject": server.address}
    match (server.config or {}).get("appendfsync"):
        case "always":
            yield Finding(**names, level="ok", text="what was answered is on disk (appendfsync always)")
        case "no":
            yield Finding(
                **names,
                level="warning",
                text="a crash of the machine loses what was not yet synced (appendfsync no)",
                to_do="CONFIG SET appendfsync everysec, or always.",
            )
        case other:
            yield Finding(
                **names,
                level="note",
                text=f"a crash of the machine loses up to a second of messages (appendfsync {other})",
                to_do="CONFIG SET appendfsync always if that is too much; it costs throughput.",
            )


def check_eviction(server: ServerFacts) -> Iterator[Finding]:
    """Can the server throw streams away when it is full?"""
    names = {"check": "eviction", "subject": server.address}
    evicted = _number(server.info.get("evicted_keys"))
    if evicted:
        yield Finding(
            **names,
            level="error",
            text=f"the server has evicted {evicted} keys since its start; streams may be among them",
            to_do="CONFIG SET maxmemory-policy noeviction, and look for missing streams.",
        )
    policy = (server.config or {}).get("maxmemory-policy") or server.info.get("maxmemory_policy")
    limit = _number(server.info.get("maxmemory"))
    if policy == "noeviction":
        yield Finding(
            **names, level="ok", text="a full server refuses writes and evicts nothing (noeviction)"
        )
        yield from _check_room(server, limit)
    elif policy is None:
        yield Finding(
            **names,
            level="warning",
            text="the server does not tell its maxmemory-policy",
            to_do="Make sure that it is noeviction.",
        )
    else:
        yield Finding(
            **names,
            level="error" if limit else "warning",
            text=f"maxmemory-policy is {policy}: a full server throws streams and groups away"
            + ("" if limit else ", and it has no maxmemory yet"),
            to_do="CONFIG SET maxmemory-policy noeviction, and keep caches on another server.",
        )


def _check_room(server: ServerFacts, limit: int) -> Iterator[Finding]:
    used = _number(server.info.get("used_memory"))
    if limit and used > 0.9 * limit:
        yield Finding(
            level="warning",
            check="memory",
            subject=server.address,
            text=f"{used * 100 // limit} % of maxmemory is used: soon the server will refuse to enqueue",
            to_do="Trim what every group has finished (conquiet trim), or give it more memory.",
        )


def check_replication(server: ServerFacts) -> Iterator[Finding]:
    """Is this a primary?"""
    if server.info.get("role") == "slave":
        yield Finding(
            level="error",
            check="replication",
            subject=server.address,
            text="this is a replica: it refuses every write",
            to_do="Use the URL of the primary, or redis+sentinel:// which finds it.",
        )


def check_clock(server: ServerFacts) -> Iterator[Finding]:
    """Do the server's clock and this machine's agree?"""
    names = {"check": "clock", "subject": server.address}
    skew = abs(server.clock_skew_ms)
    if skew - server.clock_error_ms <= _SKEW_WARNING_MS:
        yield Finding(**names, level="ok", text=f"the clocks agree within {skew + server.clock_error_ms} ms")
        return
    side = "ahead of" if server.clock_skew_ms > 0 else "behind"
    yield Finding(
        **names,
        level="error" if skew > _SKEW_ERROR_MS else "warning",
        text=f"the server's clock is {skew / 1000:.1f} s {side} this machine's",
        to_do="Run NTP on both: entry ids, ages and leases are by the server's clock, schedules by yours.",
    )


def _number(value: object) -> int:
    return int(value) if isinstance(value, int | float | str) and str(value).isdigit() else 0

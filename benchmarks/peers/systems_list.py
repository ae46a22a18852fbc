"""The systems, each with the commands that its own documentation gives for a worker."""

from __future__ import annotations

from dataclasses import dataclass, field

_HERE = "benchmarks.peers.systems"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One way to run tasks."""

    name: str
    #: A module that adds tasks when it is run with a number.
    module: str
    #: The command line of a worker, of one process; its first word is a program of the environment.
    worker: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    #: The option of its command line for concurrency `{n}`; systems that set it in their code read
    #: `PEERS_CONCURRENCY`.
    concurrent: tuple[str, ...] = ()
    #: Whether it is a contestant of `--speed`: one of its kind is enough.
    is_timed: bool = True
    #: The options by which one command of it uses two cores; without, two workers are started.
    best: tuple[str, ...] = ()
    #: The words before the number with which its module adds tasks.
    kind: tuple[str, ...] = ()
    #: Whether its queue is in PostgreSQL.
    is_in_postgres: bool = False
    #: Whether there is nothing of it without a database: its inbox, its transaction.
    needs_database: bool = False
    #: Whether a row and the end of its message are one transaction: a kill cannot part them.
    is_atomic: bool = False


def _celery(name: str, **environment: str) -> System:
    worker = ("celery", "-A", f"{_HERE}.celery_app", "worker", "--concurrency", "1", "--loglevel", "WARNING")
    return System(
        name=name,
        module=f"{_HERE}.celery_app",
        worker=worker,
        environment=environment,
        concurrent=("--pool", "threads", "--concurrency", "{n}"),
        is_timed=not environment,
        best=("--concurrency", "2"),
    )


_TASKS = f"{_HERE}.conquiet_tasks_app"
_TASKS_WORKER = ("conquiet", "worker", f"{_TASKS}:app", "--concurrency", "1")

SYSTEMS = [
    *(
        System(
            name=name,
            module=f"{_HERE}.conquiet_app",
            worker=("python", "-m", f"{_HERE}.conquiet_app", kind, "work"),
            kind=(kind,),
            is_timed=False,
            needs_database=has_inbox,
            is_atomic=has_inbox,
        )
        for kind, name, has_inbox in (
            ("mq", "conquiet MQ, Inbox", True),
            ("mq-plain", "conquiet MQ", False),
            ("drain", "conquiet drain, Inbox", True),
            ("plain", "conquiet drain", False),
            ("batches-100", "conquiet drain, Inbox, a transaction per 100", True),
            ("batches-500", "conquiet drain, Inbox, a transaction per 500", True),
        )
    ),
    System(
        name="conquiet tasks",
        module=_TASKS,
        worker=_TASKS_WORKER,
        concurrent=("--pool", "thread", "--concurrency", "{n}"),
    ),
    System(
        name="conquiet tasks, DbSession",
        module=_TASKS,
        worker=_TASKS_WORKER,
        environment={"PEERS_SESSION": "1"},
        is_timed=False,
        needs_database=True,
        is_atomic=True,
    ),
    _celery("Celery"),
    _celery("Celery, acks_late", PEERS_LATE="1"),
    System(
        name="Dramatiq",
        module=f"{_HERE}.dramatiq_app",
        worker=("dramatiq", f"{_HERE}.dramatiq_app", "--processes", "1"),
        concurrent=("--threads", "{n}"),
        best=("--processes", "2", "--threads", "8"),
    ),
    System(
        name="taskiq, Redis streams",
        module=f"{_HERE}.taskiq_app",
        worker=("taskiq", "worker", f"{_HERE}.taskiq_app:broker", "--workers", "1"),
        concurrent=("--max-async-tasks", "{n}"),
        best=("--workers", "2"),
    ),
    System(
        name="streaq", module=f"{_HERE}.streaq_app", worker=("streaq", "run", f"{_HERE}.streaq_app:worker")
    ),
    System(name="arq", module=f"{_HERE}.arq_app", worker=("arq", f"{_HERE}.arq_app.WorkerSettings")),
    System(
        name="huey",
        module=f"{_HERE}.huey_app",
        worker=("huey_consumer", f"{_HERE}.huey_app.huey"),
        concurrent=("--workers", "{n}"),
        best=("--worker-type", "process", "--workers", "2"),
    ),
    System(
        name="FastStream, Redis streams",
        module=f"{_HERE}.faststream_app",
        # What its own command does, which needs an older Typer than ours.
        worker=("python", "-m", f"{_HERE}.faststream_app", "work"),
        is_timed=False,
    ),
    System(
        name="RQ",
        module=f"{_HERE}.rq_app",
        worker=("rq", "worker", "--url", "{url}", "--quiet"),
        # It has one job at a time, in a process that it forks: 20,000 of them take a quarter of an hour.
        is_timed=False,
    ),
    *(
        System(
            name=f"pgmq, a transaction {'each' if size == 1 else f'per {size}'}",
            module=f"{_HERE}.pgmq_app",
            worker=("python", "-m", f"{_HERE}.pgmq_app", "work", str(size)),
            is_timed=False,
            is_in_postgres=True,
            is_atomic=True,
        )
        for size in (1, 100)
    ),
    System(
        name="pgqueuer",
        module=f"{_HERE}.pgqueuer_app",
        worker=("python", "-m", f"{_HERE}.pgqueuer_app", "work"),
        is_timed=False,
        is_in_postgres=True,
    ),
    System(
        name="procrastinate",
        module=f"{_HERE}.procrastinate_app",
        worker=("procrastinate", "--app", f"{_HERE}.procrastinate_app.app", "worker", "--concurrency", "30"),
        is_timed=False,
        is_in_postgres=True,
    ),
    System(
        name="DBOS",
        module=f"{_HERE}.dbos_app",
        worker=("python", "-m", f"{_HERE}.dbos_app", "work"),
        is_timed=False,
        is_in_postgres=True,
    ),
]

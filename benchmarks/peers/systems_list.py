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


def _celery(name: str, **environment: str) -> System:
    worker = ("celery", "-A", f"{_HERE}.celery_app", "worker", "--concurrency", "1", "--loglevel", "WARNING")
    return System(name=name, module=f"{_HERE}.celery_app", worker=worker, environment=environment)


SYSTEMS = [
    System(
        name="conquiet MQ, Inbox",
        module=f"{_HERE}.conquiet_app",
        worker=("python", "-m", f"{_HERE}.conquiet_app", "work"),
    ),
    _celery("Celery"),
    _celery("Celery, acks_late", PEERS_LATE="1"),
    System(
        name="Dramatiq",
        module=f"{_HERE}.dramatiq_app",
        worker=("dramatiq", f"{_HERE}.dramatiq_app", "--processes", "1"),
    ),
    System(
        name="taskiq, Redis streams",
        module=f"{_HERE}.taskiq_app",
        worker=("taskiq", "worker", f"{_HERE}.taskiq_app:broker", "--workers", "1"),
    ),
    System(
        name="streaq", module=f"{_HERE}.streaq_app", worker=("streaq", "run", f"{_HERE}.streaq_app:worker")
    ),
    System(name="arq", module=f"{_HERE}.arq_app", worker=("arq", f"{_HERE}.arq_app.WorkerSettings")),
    System(name="RQ", module=f"{_HERE}.rq_app", worker=("rq", "worker", "--url", "{url}", "--quiet")),
]

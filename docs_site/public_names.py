"""Every public name, where it is defined, and the page of the reference that has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"

#: The pages, and what they are of.
PAGES = {
    "conquiet": ("conquiet", "The core: streams, drains, the inbox and the outbox."),
    "mq": ("conquiet.mq", "Topics of partitions: sending, consuming, dead letters, administration."),
    "tasks": ("conquiet.tasks", "Functions by name: the app, workers, results, chains, schedules."),
    "spark": (
        "conquiet.spark",
        "Streams as DataFrames; every option of the data source is in [Options](../options.md#spark).",
    ),
    "page": ("conquiet.page", "The web page in a program of yours, behind a login of yours."),
    "dagster": ("dagster_conquiet", "Resources, assets, ops, jobs, sensors, checks and components."),
    "testing": (
        "conquiet.testing",
        "For the tests of your handlers, tasks, DAGs and jobs, and of your adapters.",
    ),
}
#: What else a page has, as module:name.
MORE = {
    "conquiet": (
        "conquiet.settings:Settings",
        "conquiet.logs:JsonFormatter",
        "conquiet.masking:mask",
        "conquiet.masking:scrub",
        "conquiet.tracing:enable",
        "conquiet.tracing:disable",
        "conquiet.tracing:is_enabled",
        "conquiet.tracing:headers",
    ),
    "spark": (
        "conquiet.spark.jobs:ExitCode",
        "conquiet.spark.jobs:arguments_of",
        "conquiet.spark.jobs.runner:report_of_job",
    ),
    "testing": ("airflow_provider_conquiet.testing:DagTestBed", "dagster_conquiet.testing:run_job"),
}
#: What the examples of a page have at hand, as the page shows it.
_CORE = """from sqlalchemy import create_engine, text

from conquiet import *

server = EmbeddedServer()
server.start()
client = open_client(server.url)
engine = create_engine("sqlite:///shop.db")
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE IF NOT EXISTS bills (order_id INTEGER)"))


def bill(msg, session):
    session.execute(text("INSERT INTO bills (order_id) VALUES (:order_id)"), msg.payload)


queue = RedisStreamsQueue(client, QueueConfig("orders", "billing", "worker-1"))
"""
_MQ = """
from conquiet.mq import *

topic = Topics(client).create("shipments", partitions=2)


def ship(msg, session):
    return Ack() if msg.key else Retry(delay_ms=60_000)
"""
_TASKS = """
from conquiet.tasks import *

app = TaskApp(server.url, database=engine)


@app.task
def price(quantity: int, cents: int) -> int:
    return quantity * cents


@app.task
def total(cents: list[int]) -> int:
    return sum(cents)


worker = Worker(app, WorkerConfig(pool="thread", concurrency=2))
worker.start()
"""
_SPARK = """

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from conquiet.spark import *

os.environ["PYSPARK_PYTHON"] = sys.executable
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
"""
_PAGE = """from conquiet import EmbeddedServer
from conquiet.page import *

server = EmbeddedServer()
server.start()


class OwnGate:
    async def admit(self, request):
        return User("ann", "operator")
"""
_DAGSTER = """import dagster as dg
from sqlalchemy import text

from dagster_conquiet import *


def bill(msg, session):
    session.execute(text("INSERT INTO bills (order_id) VALUES (:order_id)"), msg.payload)


orders = DrainSpec(stream="orders", group="billing", handler=bill)
shipments = TopicDrainSpec(topic="shipments", group="couriers", handler=bill)
"""
_TESTING = """
import dagster as dg
from airflow.sdk import DAG

import dagster_conquiet as dc
from airflow_provider_conquiet.operators.enqueue import EnqueueOperator
from conquiet.testing import *
"""
_AIRFLOW = """from airflow.sdk import DAG, Asset, AssetWatcher, task
from sqlalchemy import text


def bill(msg, session):
    session.execute(text("INSERT INTO bills (order_id) VALUES (:order_id)"), msg.payload)
"""
PREPARATIONS = {
    "conquiet": _CORE,
    "mq": _CORE + _MQ,
    "tasks": _CORE + _TASKS,
    "spark": _CORE + _MQ + _SPARK,
    "page": _PAGE,
    "dagster": _DAGSTER,
    "airflow": _AIRFLOW,
    "testing": _CORE + _TESTING,
}
#: Airflow's classes are imported from their modules.
AIRFLOW = (
    "hooks.redis_streams:RedisStreamsHook",
    "operators.drain:DrainOperator",
    "decorators.drain:DrainDecoratedOperator",
    "operators.claim_stale:ClaimStaleOperator",
    "operators.enqueue:EnqueueOperator",
    "decorators.enqueue:EnqueueDecoratedOperator",
    "operators.take:TakeOperator",
    "operators.take:messages_of",
    "operators.task:TaskOperator",
    "decorators.conquiet_task:TaskDecoratedOperator",
    "operators.dead_letters:ReplayDeadLettersOperator",
    "operators.trim:TrimOperator",
    "operators.consumers:PruneConsumersOperator",
    "operators.spark:SparkPublishOperator",
    "sensors.ack_by_run:AckByRunSensor",
    "sensors.backlog:BacklogSensor",
    "sensors.drain:DrainSensor",
    "sensors.message:MessageSensor",
    "triggers.backlog:BacklogTrigger",
    "triggers.match:MatchTrigger",
    "triggers.message:MessageTrigger",
    "triggers.run:RunTrigger",
    "triggers.task:TaskTrigger",
    "queues.redis_stream:RedisStreamMessageQueueProvider",
)
#: What users write instead of a name.
DECORATORS = {
    "DrainDecoratedOperator": "@task.drain",
    "EnqueueDecoratedOperator": "@task.enqueue",
    "TaskDecoratedOperator": "@task.conquiet_task",
}
#: Types alone, which have no docstring of their own.
_ALIASES = ("Role",)


@dataclass(frozen=True, slots=True)
class PublicName:
    """What users import."""

    #: As in "conquiet.mq".
    package: str
    name: str

    def load(self) -> object:
        """The class or function itself."""
        value: object = getattr(import_module(self.package), self.name)
        return value

    @property
    def path(self) -> str:
        """Where it is defined, for programs that read the source."""
        return f"{getattr(self.load(), '__module__', self.package)}.{self.name}"

    @property
    def heading(self) -> str:
        """What the page calls it: with its module where that is not the one of the page."""
        if self.name in DECORATORS:
            return f'"{DECORATORS[self.name]}"'
        return str(self) if self.is_of_module else self.name

    @property
    def is_of_module(self) -> bool:
        """Whether it is imported from a module, and not from one of the packages that have a page."""
        return self.package not in {package for package, _ in PAGES.values()}

    def __str__(self) -> str:
        return f"{self.package}.{self.name}"


def public_names(page: str) -> Iterator[PublicName]:
    """The names of one page."""
    if page == "airflow":
        for reference in AIRFLOW:
            module, _, name = reference.partition(":")
            yield PublicName(f"airflow_provider_conquiet.{module}", name)
        return
    package, _ = PAGES[page]
    for name in sorted(import_module(package).__all__, key=lambda one: (not one[0].isupper(), one)):
        if name[0] != "_" and name not in _ALIASES:
            yield PublicName(package, name)
    for reference in MORE.get(page, ()):
        module, _, name = reference.partition(":")
        yield PublicName(module, name)


def reference_page(page: str) -> str:
    """The page, for mkdocstrings to fill in."""
    if page == "airflow":
        arguments = "every argument is in [Options](../options.md#airflow)"
        head = f"# The Airflow provider\n\nHook, operators, sensors, triggers; {arguments}.\n"
    else:
        head = f"# {PAGES[page][0]}\n\n{PAGES[page][1]}\n"
    if page in PREPARATIONS:
        head += f"\nThe examples of this page begin with:\n\n```python\n{PREPARATIONS[page]}```\n"
    return head + "".join(
        f"\n::: {one.path}\n    options: {{heading: {one.heading}}}\n" for one in public_names(page)
    )


def main() -> None:
    REFERENCE.mkdir(exist_ok=True)
    for page in (*PAGES, "airflow"):
        (REFERENCE / f"{page}.md").write_text(reference_page(page))


if __name__ == "__main__":
    main()

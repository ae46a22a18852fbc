"""DagTestBed: DAGs run by Airflow in the process of a test, on a private server and a private database.

For pytest: `pytest_plugins = ["airflow_provider_conquiet.testing"]` in the outermost conftest.py gives tests
the fixture `dag_test_bed`, and Airflow a home of its own, which must be chosen before a test imports Airflow.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pytest
from sqlalchemy import Engine

from conquiet import EmbeddedServer, QueueConfig, RedisStreamsQueue, unique_consumer_name
from conquiet.db.engine import open_engine
from conquiet.payload import Sendable

if TYPE_CHECKING:
    from airflow.sdk import DAG

_CONNECTION = "AIRFLOW_CONN_REDIS_STREAMS_DEFAULT"
_homes: list[Path] = []


def choose_home() -> Path:
    """Give Airflow a home and a database of this process' own, and return the home; once, later calls too.

    Raises:
        RuntimeError: Airflow is imported already, with the home that it had then.
    """
    if _homes:
        return _homes[0]
    if "airflow.settings" in sys.modules:
        raise RuntimeError(
            "Airflow was imported before airflow_provider_conquiet.testing, and has this user's home. "
            'Put pytest_plugins = ["airflow_provider_conquiet.testing"] into the outermost conftest.py'
        )
    home = Path(tempfile.mkdtemp(prefix="conquiet-airflow-"))
    # Empty: `dag.test()` reads the whole folder at every call.
    folder = home / "dags"
    folder.mkdir()
    os.environ |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
    }
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    _homes.append(home)
    return home


class DagTestBed:
    """Runs DAGs as `dag.test()` does; their connection `redis_streams_default` leads here.

    From the start of a `with` block to its end there is a private server, so that streams may have the names
    that the DAGs give them, and an empty SQLite database.

    Examples:
        >>> with DAG("close_the_day", schedule=None) as close_the_day:
        ...     closed = EnqueueOperator(task_id="close", stream="ledger", payload={"day": "today"})
        >>> def test_the_day_is_closed(dag_test_bed):
        ...     assert dag_test_bed.run(close_the_day).state == "success"
    """

    def __init__(self, engine: Engine | None = None) -> None:
        """With the application's database, if it is there already."""
        self._given_engine = engine
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        choose_home()
        init_database()
        with ExitStack() as resources:
            self.server = resources.enter_context(EmbeddedServer())
            self.engine = self._given_engine or resources.enter_context(_own_database())
            resources.enter_context(_variable(_CONNECTION, self._connection()))
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    def enqueue(self, stream: str, payloads: Iterable[Sendable]) -> list[str]:
        """Add messages to a stream, and return their entry ids."""
        with self.queue(stream, "enqueue") as queue:
            return queue.enqueue_many(payloads)

    def queue(self, stream: str, group: str) -> RedisStreamsQueue:
        """A consumer of a stream beside the DAGs, to be closed by its `with` block."""
        config = QueueConfig(stream, group, unique_consumer_name("test"), block_ms=50)
        return RedisStreamsQueue.from_url(self.server.url, config)

    def run(self, dag: DAG, **arguments: Any) -> Any:
        """Run a DAG once, all of its tasks in this process, and return its `DagRun`.

        Args:
            arguments: those of `dag.test()`, such as `run_conf`.
        """
        return run_dag(dag, **arguments)

    @staticmethod
    def returned(run: Any, task_id: str, map_index: int = -1) -> Any:
        """What a task of the run returned; of a drain, its counts."""
        return run.get_task_instance(task_id, map_index=map_index).xcom_pull(
            task_ids=task_id, map_indexes=map_index
        )

    def _connection(self) -> str:
        fields = {"conn_type": "redis_streams", "host": "127.0.0.1", "port": self.server.port}
        database = self.engine.url.render_as_string(hide_password=False)
        return json.dumps(fields | {"extra": {"db_url": database}})


def run_dag(dag: DAG, **arguments: Any) -> Any:
    """Run a DAG as `dag.test()` does, with the DAG known to Airflow as from a file, and return its run."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    try:
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    except ImportError:  # Airflow 3.1
        from airflow.models.dagbag import DagBag, sync_bag_to_db  # type: ignore[no-redef]

    init_database()
    DagBundlesManager().sync_bundles_to_db()  # type: ignore[no-untyped-call]
    bag = DagBag(dag_folder=os.devnull)
    bag.bag_dag(dag)
    sync_bag_to_db(bag, "dags-folder", None)
    before = signal.getsignal(signal.SIGTERM)
    try:
        return dag.test(**arguments)
    finally:
        # Airflow hands the signal to its task, also when that one is over.
        signal.signal(signal.SIGTERM, before)


def init_database() -> None:
    """Make Airflow's own database, once for this process."""
    made = choose_home() / "made"
    if not made.exists():
        from airflow.utils.db import initdb

        initdb()
        made.touch()


@contextmanager
def _own_database() -> Iterator[Engine]:
    with tempfile.TemporaryDirectory() as directory:
        engine = open_engine(f"sqlite:///{directory}/test.db")
        try:
            yield engine
        finally:
            engine.dispose()


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@pytest.fixture
def dag_test_bed() -> Iterator[DagTestBed]:
    """A `DagTestBed` of the test's own."""
    with DagTestBed() as bed:
        yield bed


# As a plugin it is imported before any test.
choose_home()

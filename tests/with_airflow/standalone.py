"""A real `airflow standalone` of the tests' own: all components, private ports, nothing left behind."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import psutil
from sqlalchemy import Engine, create_engine, text

from tests.eventually import HANG_S, eventually
from tests.services import free_port
from tests.sessions import kill_sessions, processes_of

_REPOSITORY = Path(__file__).parents[2]


def connection_to(redis_url: str, db_url: str | None = None) -> str:
    """An Airflow connection of type `redis_streams`, as the environment carries it."""
    parts = urlsplit(redis_url)
    fields = {"conn_type": "redis_streams", "host": parts.hostname, "port": parts.port}
    extra = {"db": int(parts.path.strip("/") or 0)} | ({"db_url": db_url} if db_url else {})
    return json.dumps(fields | {"extra": extra})


class Standalone:
    """Scheduler, triggerer, dag-processor and api-server with LocalExecutor, from `start()` to `stop()`."""

    def __init__(self, home: Path, *, metadata_url: str, environment: Mapping[str, str]) -> None:
        self.home = home
        self.dags = home / "dags"
        self.dags.mkdir(parents=True)
        self._port = free_port()
        self._environment = os.environ | _settings(home, metadata_url, self._port) | dict(environment)
        self._metadata: Engine = create_engine(metadata_url)
        self._session: httpx.Client | None = None
        self._started: list[subprocess.Popen[bytes]] = []
        self._sessions: set[int] = set()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException as error:
            error.add_note(self.log()[-5_000:])
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and wait until every component is healthy."""
        self._run("standalone")
        eventually(self._is_healthy, every_s=0.25)

    def start_triggerer(self) -> None:
        """Start another triggerer, as a supervisor of services would after one died."""
        self._run("triggerer")

    def kill_triggerer(self) -> None:
        """SIGKILL to the process that holds the triggers, and to the one that stores their events."""
        victims = [process for process in self.processes() if _is_triggerer(process)]
        assert victims, "no triggerer runs"
        for process in victims:
            process.kill()
        eventually(lambda: all(map(_has_ended, victims)), every_s=0.05)

    def stop(self) -> None:
        """Kill every process of this Airflow; nothing of it is left afterwards."""
        # `airflow standalone` leaves its components running when it is told to stop.
        left = kill_sessions(self._sessions, "AIRFLOW_HOME", self.home)
        for started in self._started:
            started.wait(timeout=HANG_S)
        self._metadata.dispose()
        if self._session is not None:
            self._session.close()
        assert left == [], f"these processes of {self.home} are left: {left}"

    def processes(self) -> list[psutil.Process]:
        """All living processes of this Airflow: of its sessions, or with its home in their environment."""
        return processes_of(self._sessions, "AIRFLOW_HOME", self.home)

    def run_dag(self, dag_id: str) -> str:
        """Start a run by the API and return its id."""
        eventually(lambda: self._api("GET", f"dags/{dag_id}").is_success, every_s=0.25)
        run_id = f"test-{uuid.uuid4().hex}"

        def is_started() -> bool:
            answer = self._api(
                "POST", f"dags/{dag_id}/dagRuns", json={"logical_date": None, "dag_run_id": run_id}
            )
            if answer.is_server_error:
                # Airflow's database, which is one file on SQLite, was locked by its other processes.
                return False
            # 409: it was started, and the answer was an error all the same.
            return answer.status_code == 409 or bool(answer.raise_for_status())

        eventually(is_started, every_s=0.5)
        return run_id

    def run_state(self, dag_id: str, run_id: str) -> str:
        """The state of one run."""
        return str(self._api("GET", f"dags/{dag_id}/dagRuns/{run_id}").json()["state"])

    def task_tries(self, dag_id: str, run_id: str, task_id: str) -> int:
        """How many tries a task took."""
        answer = self._api("GET", f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}")
        return int(answer.json()["try_number"])

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """The state of each task of a run."""
        found = self._api("GET", f"dags/{dag_id}/dagRuns/{run_id}/taskInstances").json()["task_instances"]
        return {instance["task_id"]: instance["state"] for instance in found}

    def task_log(self, dag_id: str, run_id: str, task_id: str) -> str:
        """The log of the first try of a task, as the page of Airflow shows it."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/1"
        answer = self._api("GET", path, params={"full_content": True})
        answer.raise_for_status()
        return answer.text

    def events_stored(self, asset: str) -> int:
        """How many events of an asset are stored."""
        statement = text(
            "SELECT COUNT(*) FROM asset_event e JOIN asset a ON a.id = e.asset_id WHERE a.name = :asset"
        )
        with self._metadata.connect() as connection:
            return int(connection.scalar(statement, {"asset": asset}) or 0)

    def event_payloads(self, asset: str) -> list[dict[str, Any]]:
        """What the stored events of an asset say, in the order in which they were stored."""
        statement = text(
            "SELECT e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id "
            "WHERE a.name = :asset ORDER BY e.id"
        )
        with self._metadata.connect() as connection:
            extras = connection.scalars(statement, {"asset": asset}).all()
        return [(json.loads(extra) if isinstance(extra, str) else extra)["payload"] for extra in extras]

    def log(self) -> str:
        """What the components have printed."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.home.glob("*.out")))

    def _run(self, command: str) -> None:
        number = len(list(self.home.glob("*.out")))
        with (self.home / f"{number}-{command}.out").open("wb") as output:
            started = subprocess.Popen(
                ["airflow", command],
                env=self._environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(started)
        self._sessions.add(started.pid)

    def _is_healthy(self) -> bool:
        try:
            health = httpx.get(f"{self._url}/api/v2/monitor/health", timeout=60).json()
        except (httpx.HTTPError, ValueError):
            return False
        return all(
            health.get(component, {}).get("status") == "healthy"
            for component in ("metadatabase", "scheduler", "triggerer", "dag_processor")
        )

    def _api(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        if self._session is None:
            token = httpx.get(f"{self._url}/auth/token", timeout=HANG_S).json()["access_token"]
            self._session = httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=HANG_S)
        return self._session.request(method, f"{self._url}/api/v2/{path}", **arguments)

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self._port}"


def _settings(home: Path, metadata_url: str, port: int) -> dict[str, str]:
    settings = {
        "CORE__DAGS_FOLDER": str(home / "dags"),
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": "2",
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "DATABASE__SQL_ALCHEMY_CONN": metadata_url,
        "API__HOST": "127.0.0.1",
        "API__PORT": str(port),
        "API__WORKERS": "1",
        "API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        # A triggerer that was killed is given up after this time, and another one takes its triggers.
        "TRIGGERER__JOB_HEARTBEAT_SEC": "1",
        "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "5",
    }
    return {
        "AIRFLOW_HOME": str(home),
        # standalone starts its components by their name.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(_REPOSITORY),
        **{f"AIRFLOW__{name}": value for name, value in settings.items()},
        **_async_driver(metadata_url),
    }


def _async_driver(metadata_url: str) -> dict[str, str]:
    # Airflow's own choice for PostgreSQL is a driver that these tests do not need otherwise.
    if not metadata_url.startswith("postgresql+psycopg:"):
        return {}
    return {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": metadata_url}


def _has_ended(process: psutil.Process) -> bool:
    # `airflow standalone` does not reap its components: a killed one stays as a zombie.
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _is_triggerer(process: psutil.Process) -> bool:
    try:
        return "triggerer" in " ".join(process.cmdline())
    except psutil.Error:
        return False

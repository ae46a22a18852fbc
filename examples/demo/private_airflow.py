"""An Airflow of the demo's own: scheduler, LocalExecutor, dag-processor and api-server on private ports."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from examples.demo.processes import Child, DemoError, Processes

_START_S = 900.0
_TASK_S = 900.0
_BUSY_S = 900.0


def airflow_settings(home: Path, *, api_port: int, log_port: int) -> dict[str, str]:
    """The environment of a private Airflow; it has SQLite for its metadata, and starts no DAG by schedule."""
    settings = {
        "CORE__DAGS_FOLDER": str(home / "dags"),
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": "2",
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{api_port}/execution/",
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "API__HOST": "127.0.0.1",
        "API__PORT": str(api_port),
        "API__WORKERS": "1",
        "API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "LOGGING__WORKER_LOG_SERVER_PORT": str(log_port),
        # The files do not change while the demo runs; to read them again would cost a core.
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
        "DAG_PROCESSOR__REFRESH_INTERVAL": "3600",
        "SCHEDULER__USE_JOB_SCHEDULE": "False",
        "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.4",
    }
    return {"AIRFLOW_HOME": str(home)} | {f"AIRFLOW__{name}": value for name, value in settings.items()}


class PrivateAirflow:
    """Runs the given DAG files; needs the environment of `airflow_settings` in its processes."""

    def __init__(self, processes: Processes, home: Path, *, port: int, airflow: Path) -> None:
        self._processes = processes
        self._home = home
        self._url = f"http://127.0.0.1:{port}"
        self._airflow = airflow
        self._components: list[Child] = []
        self._token = ""

    def start(self, dags: list[Path]) -> None:
        """Make the metadata database, start the components, wait until they know the DAGs."""
        folder = self._home / "dags"
        folder.mkdir(parents=True)
        for dag in dags:
            (folder / dag.name).symlink_to(dag)
        self._run("db", "migrate").wait(_START_S)
        self._components = [self._run(name) for name in ("api-server", "scheduler", "dag-processor")]
        self._wait_until(self._is_healthy, goal="Airflow starts", timeout_s=_START_S)
        self._token = self._call("GET", "/auth/token")["access_token"]
        for dag in dags:
            self._wait_until(
                partial(self._knows, dag.stem), goal=f"Airflow reads {dag.name}", timeout_s=_START_S
            )

    def trigger(self, dag_id: str, conf: Mapping[str, Any]) -> str:
        """Start a run and return its id."""
        body = {"logical_date": None, "conf": dict(conf)}
        return str(self._api("POST", f"dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """The task instance as the API returns it: `state`, `pid`, `try_number` and more."""
        return self._api("GET", _instance(dag_id, run_id, task_id))

    def returned(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """What the task returned, which for a drain are its counts."""
        answer = self._api("GET", f"{_instance(dag_id, run_id, task_id)}/xcomEntries/return_value")
        value = answer["value"]
        returned: dict[str, Any] = json.loads(value) if isinstance(value, str) else value
        return returned

    def wait_for_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        *,
        state: str = "success",
        timeout_s: float = _TASK_S,
        every_s: float = 0.3,
    ) -> dict[str, Any]:
        """Wait until the task instance is in a state.

        Raises:
            DemoError: it failed instead, or it took too long; with the end of the task's log.
        """
        deadline = time.monotonic() + timeout_s
        while (task := self.task(dag_id, run_id, task_id))["state"] != state:
            self._check_components()
            is_late = time.monotonic() > deadline
            if is_late or task["state"] in {"failed", "upstream_failed", "success"}:
                failed = self._failed_before(dag_id, run_id, task_id)
                raise DemoError(
                    f"the task {failed} of {dag_id} failed: {task_id} is {task['state']!r}, not {state!r}",
                    log=self._task_log(failed),
                )
            if task["state"] == "up_for_retry":
                # As a user would see it: Airflow itself, with SQLite, may refuse a task on a busy machine.
                self.retry_now(dag_id, run_id, task_id)
            time.sleep(every_s)
        return task

    def _failed_before(self, dag_id: str, run_id: str, task_id: str) -> str:
        """The task of the run that has failed, or this one if none has."""
        instances = self._api("GET", f"dags/{dag_id}/dagRuns/{quote(run_id, safe='')}/taskInstances")[
            "task_instances"
        ]
        return next((one["task_id"] for one in instances if one["state"] == "failed"), task_id)

    def retry_now(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Clear a task instance that waits for its retry: the next try begins at once."""
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": [task_id], "only_failed": False}
        self._api("POST", f"dags/{dag_id}/clearTaskInstances", body)

    def _run(self, *arguments: str) -> Child:
        name = " ".join(["airflow", *arguments])
        return self._processes.start(name, [self._airflow, *arguments], cwd=self._home)

    def _wait_until(self, is_done: Callable[[], bool], *, goal: str, timeout_s: float) -> None:
        self._processes.wait_until(is_done, goal=goal, timeout_s=timeout_s, needed=self._components)

    def _check_components(self) -> None:
        for child in self._components:
            if not child.is_running:
                raise child.failure()

    def _is_healthy(self) -> bool:
        try:
            health = self._call("GET", "/api/v2/monitor/health")
        except OSError:
            return False
        return all(
            health.get(component, {}).get("status") == "healthy"
            for component in ("metadatabase", "scheduler", "dag_processor")
        )

    def _knows(self, dag_id: str) -> bool:
        try:
            self._api("GET", f"dags/{dag_id}")
        except HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    def _api(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        deadline = time.monotonic() + _BUSY_S
        while True:
            try:
                return self._call(method, f"/api/v2/{path}", body)
            except OSError as error:
                # SQLite has one writer: a busy Airflow may refuse a question, and answer it a moment later.
                is_refused = (
                    not isinstance(error, HTTPError) or error.code >= HTTPStatus.INTERNAL_SERVER_ERROR
                )
                if is_refused and method == "GET" and time.monotonic() < deadline:
                    time.sleep(1)
                    continue
                if isinstance(error, HTTPError) and error.code == HTTPStatus.NOT_FOUND:
                    raise
                raise DemoError(f"Airflow refused {method} {path}: {error}", log=self._api_log()) from error

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._url + path, data=data, headers=headers, method=method)  # noqa: S310 -- our own
        with urlopen(request, timeout=120) as answer:  # noqa: S310
            reply: dict[str, Any] = json.loads(answer.read())
        return reply

    def _api_log(self) -> Path | None:
        return self._components[0].log if self._components else None

    def _task_log(self, task_id: str) -> Path | None:
        logs = self._home.glob(f"logs/**/task_id={task_id}/*.log")
        return max(logs, key=lambda path: path.stat().st_mtime, default=None)


def _instance(dag_id: str, run_id: str, task_id: str) -> str:
    return f"dags/{dag_id}/dagRuns/{quote(run_id, safe='')}/taskInstances/{task_id}"

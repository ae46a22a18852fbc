"""TaskTrigger: waits for the end of a task, and shows its states in the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.triggers.backlog import LONGEST_RETRY_S
from conquiet import QueueError
from conquiet.queue import AsyncClient
from conquiet.tasks import TaskApp, TaskStatus
from conquiet.tasks.following import follow_async
from conquiet.tasks.results import AsyncRedisResults

log = logging.getLogger(__name__)


class TaskTrigger(BaseTrigger):
    """Ends with one event when the task has ended; it names the task and has no result.

    It blocks on the server, with one connection for each task that is waited for. While Redis is unavailable
    it logs that and goes on. If its task is killed in Airflow, it revokes the conquiet task (Airflow 3.3 and
    later).

    Examples:
        >>> trigger = TaskTrigger(  # what a deferred `TaskOperator` waits with
        ...     conquiet_task_id="1700000000000-0", task_queue="default", namespace="tasks"
        ... )
    """

    def __init__(
        self,
        *,
        conquiet_task_id: str,
        task_queue: str,
        namespace: str,
        redis_streams_conn_id: str = RedisStreamsHook.default_conn_name,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's triggers are typed in part
        self.conquiet_task_id = conquiet_task_id
        self.task_queue = task_queue
        self.namespace = namespace
        self.redis_streams_conn_id = redis_streams_conn_id
        self._client: AsyncClient | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and the arguments that make this trigger again."""
        return (
            f"{TaskTrigger.__module__}.{TaskTrigger.__qualname__}",
            {
                "conquiet_task_id": self.conquiet_task_id,
                "task_queue": self.task_queue,
                "namespace": self.namespace,
                "redis_streams_conn_id": self.redis_streams_conn_id,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, and ring once."""
        self._client = await RedisStreamsHook(self.redis_streams_conn_id).get_async_conn()
        try:
            status = await self._follow(AsyncRedisResults(self._client, self.namespace))
            state = "unknown" if status is None else str(status.state)
            event = {"id": self.conquiet_task_id, "task_queue": self.task_queue, "state": state}
            yield TriggerEvent(event)  # type: ignore[no-untyped-call]
        finally:
            await self.cleanup()

    async def on_kill(self) -> None:
        """Revoke the task: its Airflow task was marked as failed or succeeded, or cleared."""
        server = await RedisStreamsHook(self.redis_streams_conn_id).aserver()
        log.info(await asyncio.to_thread(self._revoke, server.url))

    async def cleanup(self) -> None:
        """Close the client; a trigger that is cancelled at its `yield` never comes to its own end."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _follow(self, results: AsyncRedisResults) -> TaskStatus | None:
        retry_s = 0.0
        while True:
            try:
                return await follow_async(results, self.conquiet_task_id, self.task_queue, log.info)
            except QueueError as error:
                retry_s = min(2 * retry_s or 1.0, LONGEST_RETRY_S)
                log.warning("%s; trying again in %.0f s", error, retry_s)
                await asyncio.sleep(retry_s)

    def _revoke(self, url: str) -> str:
        with TaskApp(url, namespace=self.namespace) as app:
            return revoke_task(app, self.conquiet_task_id, self.task_queue)


def revoke_task(app: TaskApp, task_id: str, queue: str) -> str:
    """Revoke a task, also while it runs, and say so in one sentence."""
    app.revoke(task_id, queue, terminate=True)
    return f"task {task_id} in queue {queue!r} is revoked, as its Airflow task was stopped"

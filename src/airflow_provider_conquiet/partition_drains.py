"""A drain of one partition inside a task: the lease, and which of its ends are the task's failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from sqlalchemy import Engine

from airflow_provider_conquiet.drains import DrainSettings, ShouldStop
from airflow_provider_conquiet.refusals import refused_at_once
from conquiet.mq import ConsumerConfig, PartitionDrainReport, Topic, drain_partition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDrain:
    """What to drain, for whom and how."""

    topic: Topic
    partition: int
    group: str
    settings: DrainSettings
    idle_ms: int
    config: ConsumerConfig
    #: Owners that are known to be dead, as earlier tries of this task.
    replaces: list[str]

    def run(
        self, handler: Callable[..., Any], engine: Engine, should_stop: ShouldStop
    ) -> PartitionDrainReport:
        """Drain, and keep the two retry layers apart, as `run_drain` does.

        Raises:
            PartitionBusyError: somebody else drains this partition now.
            DatabaseUnavailableError: the database could not be reached for the config's `max_outage_s`.
        """
        watched = _WatchedHandler(handler)
        report = self._drain(watched, engine, should_stop)
        self._raise_if_broken(report, watched.first_error)
        if report.stopped_by == "stop":
            raise AirflowException(f"told to stop before the drain was done: {report.to_json()}")
        return report

    def _drain(self, handler: _WatchedHandler, engine: Engine, must_stop: ShouldStop) -> PartitionDrainReport:
        settings = self.settings
        # Handlers' errors do not leave this drain: a TypeError here is ours.
        with refused_at_once():
            return drain_partition(
                self.topic,
                self.partition,
                self.group,
                handler,
                engine,
                max_messages=settings.max_messages,
                max_duration_s=settings.max_duration_s,
                max_failures=self._max_failures,
                idle_ms=self.idle_ms,
                inbox=settings.inbox,
                config=self.config,
                should_stop=must_stop,
                replaces=self.replaces,
            )

    @property
    def _max_failures(self) -> int | None:
        return 1 if self.settings.on_error == "raise" else self.settings.max_failures

    def _raise_if_broken(self, report: PartitionDrainReport, error: Exception | None) -> None:
        failed = report.retried + report.dead_lettered
        if self._max_failures is None or failed < self._max_failures:
            return
        if self.settings.on_error == "raise" and error is not None:
            raise error
        raise AirflowFailException(
            f"{failed} messages of partition {self.partition} of topic {self.topic.name!r} failed. With "
            f"max_failures={self._max_failures} this is the handler's fault and not its messages'; mend it, "
            "then clear this task"
        ) from error


@dataclass(slots=True)
class _WatchedHandler:
    """The user's handler, whose first error is also remembered here."""

    function: Callable[..., Any]
    first_error: Exception | None = field(default=None)

    def __call__(self, msg: Any, session: Any) -> Any:
        try:
            return self.function(msg, session)
        except Exception as error:
            self.first_error = self.first_error or error
            raise

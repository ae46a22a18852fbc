"""Site: what all views of a page share; its connections are opened with the first request."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING

from conquiet.errors import ConquietError, MissingExtraError
from conquiet.operations import AuditLog, SampleRing, ServerFacts, server_facts
from conquiet.page.actions.jobs import Jobs
from conquiet.page.catalogue import Catalogue, Subject
from conquiet.page.masks import FieldMask
from conquiet.page.recent import Recent
from conquiet.page.rows import Rows
from conquiet.page.sampler import Sampler
from conquiet.page.settings import PageSettings
from conquiet.queue import Client, open_client
from conquiet.queue.connection import run_command

if TYPE_CHECKING:
    from conquiet.tasks import TaskApp

_log = logging.getLogger(__name__)

#: INFO and CONFIG are asked again after this time.
_SERVER_FRESH_S = 15.0


class Site:
    """One page over one server or cluster; made for many threads.

    Examples:
        >>> site = Site(lambda: server.url, PageSettings(secret="of your configuration"))
        >>> site.close()
    """

    def __init__(
        self, url: Callable[[], str], settings: PageSettings, open_app: Callable[[], TaskApp] | None = None
    ) -> None:
        """A site on the server of a URL, which is asked for with the first request.

        Args:
            open_app: an app with the keys that tasks are signed or encrypted with; else one without.
        """
        self._url = url
        self._open_app = open_app
        self.settings = settings
        self.mask = FieldMask(settings.masked_fields)
        self.catalogue = Catalogue(settings.namespace, settings.streams)
        self.rows = Rows(settings.namespace)
        self.jobs = Jobs()
        self._lock = threading.Lock()
        self._servers: Recent[list[ServerFacts]] = Recent(_SERVER_FRESH_S)
        self._sampler: Sampler | None = None

    @cached_property
    def client(self) -> Client:
        return open_client(self._url())

    @cached_property
    def ring(self) -> SampleRing:
        return SampleRing(self.client)

    @cached_property
    def audit(self) -> AuditLog:
        return AuditLog(self.client)

    @property
    def has_tasks(self) -> bool:
        """Whether the extra of tasks is installed."""
        return find_spec("pydantic") is not None and find_spec("cronsim") is not None

    @cached_property
    def app(self) -> TaskApp:
        """The app whose queues and schedules are shown.

        Raises:
            MissingExtraError: the extra of tasks is not installed.
        """
        if not self.has_tasks:
            raise MissingExtraError("tasks on the page", missing="pydantic", extra="tasks")
        if self._open_app is not None:
            return self._open_app()
        from conquiet.tasks import TaskApp

        return TaskApp(self._url(), namespace=self.settings.namespace)

    @property
    def command_options(self) -> dict[str, object]:
        """Options that each command on tasks and schedules needs here."""
        namespace = self.settings.namespace
        return {"app": self.settings.app, "namespace": None if namespace == "tasks" else namespace}

    @property
    def sampler(self) -> Sampler:
        """The one sampler of this process; it runs from the first call on."""
        with self._lock:
            if self._sampler is None:
                self._sampler = Sampler(
                    self.client,
                    self.catalogue,
                    self.settings.namespace,
                    finds_streams=self.settings.finds_streams,
                )
                if self.settings.takes_samples:
                    self._sampler.start()
            return self._sampler

    def start_sampler(self) -> None:
        """Have samples taken from now on, before anybody looks; where that fails, from the first view on."""
        if not self.settings.takes_samples:
            return
        try:
            _ = self.sampler
        except (ConquietError, OSError) as error:
            _log.warning("no samples are taken until somebody looks: %s", error)

    def now_ms(self) -> int:
        """The server's time."""
        seconds, microseconds = run_command(self.client, "TIME", stream="(server)", group=None)
        return int(seconds) * 1000 + int(microseconds) // 1000

    def servers(self) -> list[ServerFacts]:
        """What the doctor checks of the server, as it was up to 15 s ago."""
        return self._servers.get(lambda: server_facts(self.client))

    def subject(self, name: str, kind: str = "") -> Subject:
        """What a name is; one that is not known is taken for a plain stream."""
        known = [one for one in self.catalogue.subjects(self.client) if one.name == name]
        return next((one for one in known if not kind or one.kind == kind), Subject(name, "stream"))

    def close(self) -> None:
        """Stop what runs in the background, and close the connections."""
        self.jobs.stop()
        with self._lock:
            if self._sampler is not None:
                self._sampler.stop()
        app = self.__dict__.pop("app", None)
        if app is not None:
            app.close()
        client = self.__dict__.pop("client", None)
        if client is not None:
            client.close()

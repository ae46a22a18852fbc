"""The results of tasks with a session, in every database, by the suite that users run on their stores."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import Engine

from conquiet.tasks import TaskApp
from conquiet.testing import ResultStoreContract


class TestSqlResults(ResultStoreContract):
    """The default store."""

    takes_session = True

    @pytest.fixture(autouse=True)
    def _use(self, valkey_url: str, db: Engine) -> None:
        self._url, self._db = valkey_url, db

    def make_app(self) -> TaskApp:
        """On the database of the test."""
        return TaskApp(self._url, database=self._db, namespace=f"tasks-{uuid.uuid4().hex[:10]}")

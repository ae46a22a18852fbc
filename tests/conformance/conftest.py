"""The fixtures of documents 000 to 004."""

from tests.with_redis.tasks.conftest import app, start

__all__ = ["app", "start"]

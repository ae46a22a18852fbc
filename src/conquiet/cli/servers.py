"""Whether there is a server at all, before a command that would wait for it for long."""

from __future__ import annotations

from conquiet.cli.exits import NoServerError
from conquiet.errors import QueueError
from conquiet.masking import mask


def check_server(url: str) -> None:
    """Ask the server for any answer.

    Raises:
        NoServerError: there is none.
        QueueError: it does not let us in.
    """
    import redis

    from conquiet.queue import open_client
    from conquiet.queue.connection import run_command, visible_errors

    try:
        # A cluster client connects at once.
        with visible_errors("connect", stream="(server)", group=None):
            client = open_client(url)
        with client:
            # What every role may ask.
            run_command(client, "TIME", stream="(server)", group=None)
    except QueueError as error:
        cause = error.__cause__
        if isinstance(cause, redis.AuthenticationError):
            raise
        # One that loads its data, or whose ACL forbids to ask, answers.
        if not isinstance(cause, redis.ResponseError | redis.BusyLoadingError):
            raise NoServerError(mask(url), str(cause)) from error

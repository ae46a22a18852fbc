"""What a job tells in the end: a small JSON object, on stdout and where it was asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conquiet.queue import open_client
from conquiet.spark.jobs.credentials import Credentials
from conquiet.spark.jobs.exit_codes import ExitCode, JobError

Report = dict[str, Any]

_TO_STREAM = "stream:"
#: A report that nobody fetches goes by itself.
_KEPT_MS = 24 * 3_600_000


def write_report(report: Report, to: str | None, credentials: Credentials | None) -> None:
    """Print it, as the last line of stdout, after it was written to a file or stream if asked for.

    Raises:
        JobError: it cannot be written there; it was printed all the same.
    """
    text = json.dumps(report)
    try:
        if to is not None and to.startswith(_TO_STREAM):
            if credentials is not None:
                _add_to_stream(to.removeprefix(_TO_STREAM), text, credentials)
        elif to is not None:
            Path(to).write_text(text + "\n")
    except Exception as error:
        raise JobError(ExitCode.FAILED, f"the report cannot be written to {to!r}: {error}") from error
    finally:
        print(text, flush=True)


def _add_to_stream(stream: str, text: str, credentials: Credentials) -> None:
    with open_client(credentials.redis_url) as client:
        client.xadd(stream, {"data": text}, maxlen=100)
        client.pexpire(stream, _KEPT_MS)

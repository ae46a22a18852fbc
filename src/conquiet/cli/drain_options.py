"""The options that drains share."""

from __future__ import annotations

from typing import Annotated

import typer

HandlerName = Annotated[
    str,
    typer.Option("--handler", help="The function: package.module:function.", metavar="MODULE:FUNCTION"),
]
Database = Annotated[
    str | None,
    typer.Option("--database", help="SQLAlchemy URL; else the setting `database_url`.", metavar="URL"),
]
MaxMessages = Annotated[int, typer.Option("--max-messages", help="Stop after so many.")]
UseInbox = Annotated[
    bool, typer.Option("--inbox", help="Remember what was handled, so that its effects happen once.")
]
OnError = Annotated[
    str, typer.Option("--on-error", help="Streams: `raise` stops at the first failure, `continue` goes on.")
]
MaxFailures = Annotated[int | None, typer.Option("--max-failures", help="Stop after so many failures.")]
MaxDeliveries = Annotated[
    int | None,
    typer.Option("--max-deliveries", help="Streams: quarantine what was delivered more often than this."),
]
QuarantineTo = Annotated[
    str | None, typer.Option("--quarantine-to", help="Streams: another quarantine stream.", metavar="STREAM")
]
MaxDuration = Annotated[
    str | None, typer.Option("--max-duration", help="Begin no message after this time.", metavar="DURATION")
]
IdleTime = Annotated[
    str, typer.Option("--idle", help="End when nothing came for so long.", metavar="DURATION")
]
BatchSize = Annotated[int, typer.Option("--batch-size", help="Streams: the most that one read asks for.")]
Consumer = Annotated[
    str | None, typer.Option("--consumer", help="The consumer's name; else one of its own.", metavar="NAME")
]

"""`conquiet doctor`: what can lose messages, and what to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from conquiet.cli.exits import ExitCode
from conquiet.cli.site import Site, command
from conquiet.masking import mask

_CODES = {"ok": ExitCode.DONE, "note": ExitCode.DONE, "warning": ExitCode.WARNINGS, "error": ExitCode.FAILED}
_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "doctor")(doctor)


def doctor(
    site: Site,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Topics or plain streams to look at; without any, every topic.", metavar="[NAME]..."
        ),
    ] = None,
) -> int:
    """Look for what can lose messages or hold them up: the server, its clock, groups and consumers.

    The exit code is that of the worst finding: 0 for ok and notes, 8 for warnings, 1 for errors.
    """
    from conquiet.mq import Topics
    from conquiet.operations import diagnose, look_at_servers, look_at_topic, worst_level

    with site.client() as client:
        servers = look_at_servers(client)
        wanted = names or Topics(client).names()
        findings = diagnose(servers, [look_at_topic(client, name) for name in wanted])
    worst = worst_level(findings)

    def tell() -> None:
        from rich.text import Text

        console = site.output.console()
        for finding in findings:
            line = Text.assemble(
                (f"{finding.level:<8}", _STYLES[finding.level]), f"{finding.subject}: {finding.text}"
            )
            console.print(line)
            if finding.to_do is not None:
                console.print(Text(f"        {finding.to_do}", style="dim"))

    document = {
        "url": mask(site.settings.redis_url),
        "worst": worst,
        "findings": [asdict(finding) for finding in findings],
    }
    site.output.show(document, tell)
    return _CODES[worst]

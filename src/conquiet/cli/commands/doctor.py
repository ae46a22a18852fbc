"""`conquiet doctor`: what can lose messages, and what to do."""

from __future__ import annotations

from dataclasses import asdict

from conquiet.cli.context import CommandContext
from conquiet.cli.drains import Database
from conquiet.cli.exits import ExitCode
from conquiet.cli.values import Names
from conquiet.masking import mask

_CODES = {"ok": ExitCode.DONE, "note": ExitCode.DONE, "warning": ExitCode.WARNINGS, "error": ExitCode.FAILED}
_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


def doctor(context: CommandContext, names: Names = None, database: Database = None) -> int:
    """Find what can lose or delay messages: the server, its clock, groups, consumers, the handlers' database.

    The exit code is that of the worst finding: 0 for ok and notes, 8 for warnings, 1 for errors.
    """
    from conquiet.mq import MqAdmin
    from conquiet.operations import database_facts, diagnose, server_facts, topic_facts, worst_level

    with context.client() as client, context.engine(database) as engine:
        servers = server_facts(client)
        wanted = names or [topic.name for topic in MqAdmin(client).topics()]
        databases = [] if engine is None else [database_facts(engine)]
        findings = diagnose(servers, [topic_facts(client, name) for name in wanted], databases)
    worst = worst_level(findings)

    def print_findings() -> None:
        from rich.text import Text

        console = context.output.console()
        for finding in findings:
            level = (f"{finding.level:<8}", _STYLES[finding.level])
            console.print(Text.assemble(level, f"{finding.subject}: {finding.text}"))
            if finding.to_do is not None:
                console.print(Text(f"        {finding.to_do}", style="dim"))

    document = {
        "url": mask(context.settings.redis_url),
        "worst": worst,
        "findings": [asdict(finding) for finding in findings],
    }
    context.output.show(document, print_findings)
    return _CODES[worst]

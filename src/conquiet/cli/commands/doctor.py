"""`conquiet doctor`: what can lose messages, and what to do."""

from __future__ import annotations

from dataclasses import asdict

from conquiet.cli.context import CommandContext
from conquiet.cli.drains import Database
from conquiet.cli.exits import ExitCode
from conquiet.cli.names import find_subjects
from conquiet.cli.values import AllNames, Namespace
from conquiet.masking import mask

_CODES = {"ok": ExitCode.DONE, "note": ExitCode.DONE, "warning": ExitCode.WARNINGS, "error": ExitCode.FAILED}
_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


def doctor(
    context: CommandContext,
    names: AllNames = None,
    database: Database = None,
    namespace: Namespace = "tasks",
) -> int:
    """Find what can lose or delay messages and tasks: the server, groups, queues, workers, the database.

    The exit code is that of the worst finding: 0 for ok and notes, 8 for warnings, 1 for errors.
    """
    from conquiet.operations import (
        Finding,
        database_facts,
        diagnose,
        queue_facts,
        server_facts,
        topic_facts,
        worst_level,
    )

    with context.client() as client, context.engine(database) as engine:
        subjects = find_subjects(client, names, namespace)
        findings = diagnose(
            server_facts(client),
            [topic_facts(client, name) for name in subjects.topics],
            [] if engine is None else [database_facts(engine)],
            [queue_facts(client, name, namespace=namespace) for name in subjects.queues or ()],
        )
    if subjects.problem:
        text = f"queues of tasks are not checked: {subjects.problem}"
        findings.append(Finding("note", "queues", mask(context.settings.redis_url), text))
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

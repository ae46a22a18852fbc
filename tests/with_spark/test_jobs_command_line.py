"""What is wrong with a job's arguments, secrets or servers is reported before Spark is started."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from sqlalchemy import make_url

from conquiet import EmbeddedServer
from conquiet.spark.jobs import ExitCode, JobError, application_of, arguments_of, check_arguments
from conquiet.spark.jobs.command_line import parse
from conquiet.spark.jobs.credentials import Credentials
from conquiet.spark.jobs.jdbc import driver_of, jdbc_error
from tests.eventually import HANG_S, eventually
from tests.services import database, free_port, redis_binary, unavailable
from tests.with_spark.job_runs import run_here

GOOD = {"table": "orders", "to_topic": "totals"}
WINDOW = {"by": "customer", "window": "1 hour"}


@pytest.fixture(autouse=True)
def no_spark(monkeypatch):
    """A job that asks for a session has not checked its servers first."""

    def refuse(*_):
        raise AssertionError("Spark was started")

    monkeypatch.setattr("conquiet.spark.jobs.runner._session", refuse)


@pytest.fixture
def run(capsys, monkeypatch, valkey_url):
    """Runs a job on the tests' server."""
    monkeypatch.setenv("CONQUIET_REDIS_URL", valkey_url)
    monkeypatch.delenv("CONQUIET_DATABASE_URL", raising=False)
    return lambda job, **options: run_here(capsys, job, **options)


@contextmanager
def sentinel_with_password(directory: Path) -> Iterator[int]:
    """A sentinel that wants the password `right`; yields its port."""
    binary, port = redis_binary("redis7"), free_port()
    if binary is None:
        unavailable("redis", "no redis-server to run as a sentinel")
    config = directory / "sentinel.conf"
    config.write_text(f"port {port}\nbind 127.0.0.1\ndir {directory}\nrequirepass right\n")
    process = subprocess.Popen([str(binary), str(config), "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: answers(port))
        yield port
    finally:
        process.terminate()
        process.wait(timeout=HANG_S)


def answers(port: int) -> bool:
    try:
        with redis.Redis(port=port, password="right") as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


@pytest.mark.parametrize(
    ("job", "options", "sentence"),
    [
        ("publish", {"table": "orders"}, "either --to-topic or --to-stream"),
        ("publish", GOOD | {"to_stream": "s"}, "either --to-topic or --to-stream"),
        ("publish", {"to_topic": "totals"}, "exactly one of --files, --table, --query must"),
        ("publish", GOOD | {"query": "SELECT 1"}, "exactly one of"),
        ("publish", {"table": "t", "to_stream": "s", "key": "k"}, "a plain stream has no keys"),
        ("publish", GOOD | {"option": "header"}, "--option needs NAME=VALUE, got 'header'"),
        ("publish", GOOD | {"tasks": 2}, "--tasks needs --partition-column"),
        ("publish", GOOD | {"tasks": 0}, "must be above 0"),
        ("publish", GOOD | {"partition_column": "id"}, "for --in database and --in jdbc"),
        ("publish", GOOD | {"nonsense": "x"}, "unrecognized arguments"),
        ("publish", GOOD | {"topic": "x"}, "unrecognized arguments"),
        ("aggregate", GOOD | WINDOW, "--time must name the column of time"),
        ("aggregate", {"topic": "t", "to_topic": "totals"} | WINDOW, "need --schema"),
        ("aggregate", GOOD | {"window": "1 hour"}, "required: --by"),
    ],
)
def test_arguments_that_do_not_fit_together_are_refused(run, job, options, sentence):
    ended = run(job, **options)

    assert ended.code == ExitCode.ARGUMENTS
    assert sentence in ended.report["error"]
    assert sentence in ended.stderr
    with pytest.raises(JobError, match=sentence[:20]):
        check_arguments(job, arguments_of(options))


def test_options_become_a_command_line_that_means_the_same():
    options = {"topic": "t", "schema": "a INT", "start": "-", "to_topic": "x", "sum": ["a", "b"], "end": None}

    plan = parse("aggregate", arguments_of(options | WINDOW))

    assert (plan.source.topic, plan.source.start, plan.source.end) == ("t", "-", None)
    assert plan.window is not None
    assert plan.window.measures == (("sum", "a"), ("sum", "b"))
    assert plan.window.time == "timestamp"


def test_a_job_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(JobError, match="no job 'nothing', only publish, aggregate"):
        application_of("nothing")


def test_a_missing_topic_is_reported(run):
    ended = run("publish", table="orders", to_topic="never-created")

    assert ended.code == ExitCode.TOPIC
    assert "topic 'never-created' is not there" in ended.report["error"]


def test_an_unavailable_server_is_reported(run, monkeypatch, free_url):
    monkeypatch.setenv("CONQUIET_REDIS_URL", free_url)

    ended = run("publish", **GOOD)

    assert ended.code == ExitCode.REDIS
    assert "Redis does not answer" in ended.report["error"]


def test_an_unavailable_database_is_reported_without_its_password(run, monkeypatch, topic, free_url):
    port = free_url.split(":")[2].split("/")[0]
    monkeypatch.setenv("CONQUIET_DATABASE_URL", f"postgresql+psycopg://u:hush%21@127.0.0.1:{port}/x")

    ended = run("publish", table="orders", **{"in": "database"}, to_topic=topic.name)

    assert ended.code == ExitCode.DATABASE
    assert "the database does not answer" in ended.report["error"]
    assert "hush" not in ended.stderr + json.dumps(ended.report)


@pytest.mark.parametrize("location", ["database", "jdbc"])
def test_a_location_needs_its_url(run, topic, location):
    ended = run("publish", table="orders", **{"in": location}, to_topic=topic.name)

    assert ended.code == ExitCode.ARGUMENTS
    assert f"CONQUIET_{location.upper()}_URL" in ended.report["error"]


def test_the_url_of_redis_is_needed(run, monkeypatch):
    monkeypatch.delenv("CONQUIET_REDIS_URL")

    ended = run("publish", **GOOD)

    assert ended.code == ExitCode.ARGUMENTS
    assert "the URL of Redis is missing" in ended.report["error"]


def test_a_file_of_secrets_wins_over_the_environment_and_is_found_where_spark_ships_it(tmp_path, monkeypatch):
    (tmp_path / "hidden.json").write_text('{"CONQUIET_REDIS_URL": "redis://file"}')
    environment = {"CONQUIET_REDIS_URL": "redis://environment", "CONQUIET_DATABASE_URL": "sqlite://"}
    monkeypatch.chdir(tmp_path)

    given = Credentials.read("/where/airflow/wrote/it/hidden.json", environment)

    assert (given.redis_url, given.database_url) == ("redis://file", "sqlite://")
    assert "redis://" not in repr(given)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "cannot be read"),
        ('{"CONQUIET_REDIS_URL": 7}', "must be a JSON object of texts"),
        ('{"REDIS_PASSWORD": "x"}', "has REDIS_PASSWORD; known are CONQUIET_REDIS_URL"),
    ],
)
def test_a_file_of_secrets_that_says_something_else_is_refused(tmp_path, content, sentence):
    path = tmp_path / "secrets.json"
    path.write_text(content)

    with pytest.raises(JobError, match=sentence):
        Credentials.read(str(path), {})


def test_passwords_are_hidden_as_they_are_written_and_as_they_are_meant():
    given = Credentials(redis_url="redis://u:a%2Fb@h", jdbc_password="hush")

    assert given.hidden_in("a%2Fb, a/b, hush and more") == "***, ***, *** and more"


def test_a_report_goes_to_a_file_and_to_a_stream(run, tmp_path, valkey, stream):
    run("publish", table="orders", to_topic="never-created", report=f"{tmp_path}/report.json")
    ended = run("publish", table="orders", to_topic="never-created", report=f"stream:{stream}")

    assert json.loads((tmp_path / "report.json").read_text())["exit_code"] == ExitCode.TOPIC
    [(_, fields)] = valkey.xrange(stream)
    assert json.loads(fields[b"data"]) == ended.report
    assert valkey.pttl(stream) > 0


def test_a_report_that_cannot_be_written_is_not_a_success(run, tmp_path):
    ended = run("publish", table="orders", to_topic="never-created", report=f"{tmp_path}/not/there.json")

    assert ended.report["exit_code"] == ExitCode.TOPIC
    assert "cannot be written to" in ended.stderr


def test_help_names_the_exit_codes_and_needs_no_spark():
    command = [
        sys.executable,
        "-c",
        "import sys; sys.modules['pyspark'] = None\n"
        "from conquiet.spark.jobs.runner import run_job; run_job('aggregate', ['--help'])",
    ]

    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True)

    assert "3 no such topic" in done.stdout
    assert "--window" in done.stdout


def test_a_wrong_password_of_redis_is_a_mistake_and_not_an_outage(run, monkeypatch, valkey_url):
    monkeypatch.setenv("CONQUIET_REDIS_URL", valkey_url.replace("redis://", "redis://nobody:wrong@"))

    ended = run("publish", query="SELECT 1 AS n", to_topic="numbers")

    assert ended.code == ExitCode.ARGUMENTS
    assert "Redis refuses the login of CONQUIET_REDIS_URL" in ended.report["error"]
    assert "wrong@" not in ended.report["error"]


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_login_that_the_database_refuses_is_a_mistake(run, monkeypatch, topic, tmp_path, kind):
    with database(kind, tmp_path) as url:
        refused = make_url(url).set(username="nobody", password="wrong").render_as_string(hide_password=False)
        monkeypatch.setenv("CONQUIET_DATABASE_URL", refused)

        ended = run("publish", table="orders", **{"in": "database"}, to_topic=topic.name)

    assert ended.code == ExitCode.ARGUMENTS
    assert "the database refuses the login of CONQUIET_DATABASE_URL" in ended.report["error"]
    assert "wrong@" not in ended.report["error"]


@pytest.mark.parametrize("job", ["publish", "aggregate"])
def test_an_unavailable_cluster_is_reported(run, monkeypatch, free_url, job):
    monkeypatch.setenv("CONQUIET_REDIS_URL", free_url.replace("redis://", "redis+cluster://"))
    more = {} if job == "publish" else {**WINDOW, "time": "ordered_at"}

    ended = run(job, **GOOD, **more)

    assert ended.code == ExitCode.REDIS
    assert "Redis does not answer" in ended.report["error"]


def test_a_wrong_password_of_a_cluster_is_a_mistake(run, monkeypatch):
    with EmbeddedServer(cluster=3) as server:
        monkeypatch.setenv("CONQUIET_REDIS_URL", server.url.replace("://", "://nobody:wrong@"))

        ended = run("publish", **GOOD)

    assert ended.code == ExitCode.ARGUMENTS
    assert "Redis refuses the login of CONQUIET_REDIS_URL" in ended.report["error"]
    assert "wrong@" not in ended.report["error"]


def test_a_wrong_password_of_a_sentinel_is_a_mistake_and_a_sentinel_that_is_not_there_an_outage(
    run, monkeypatch, tmp_path, free_url
):
    with sentinel_with_password(tmp_path) as port:
        endings = []
        for url in (
            f"redis+sentinel://127.0.0.1:{port}/orders/0?sentinel_password=wrong",
            f"redis+sentinel://127.0.0.1:{port}/orders/0",
            free_url.replace("redis://", "redis+sentinel://").replace("/0", "/orders/0"),
        ):
            monkeypatch.setenv("CONQUIET_REDIS_URL", url)
            endings.append(run("publish", **GOOD))

    assert [ended.code for ended in endings] == [ExitCode.ARGUMENTS, ExitCode.ARGUMENTS, ExitCode.REDIS]


def test_nobody_at_the_address_of_a_jdbc_url_is_reported_without_spark(run, monkeypatch, topic, free_url):
    port = free_url.rpartition(":")[2].partition("/")[0]
    url = f"jdbc:postgresql://127.0.0.1:{port}/shop?user=u&password=hush"
    monkeypatch.setenv("CONQUIET_JDBC_URL", url)

    ended = run("publish", table="orders", **{"in": "jdbc"}, to_topic=topic.name)

    assert ended.code == ExitCode.DATABASE
    assert f"CONQUIET_JDBC_URL does not answer at 127.0.0.1:{port}" in ended.report["error"]


def test_a_jdbc_url_that_is_none_is_a_mistake(run, monkeypatch, topic):
    monkeypatch.setenv("CONQUIET_JDBC_URL", "postgresql://127.0.0.1/shop")

    ended = run("publish", table="orders", **{"in": "jdbc"}, to_topic=topic.name)

    assert ended.code == ExitCode.ARGUMENTS
    assert "must begin with jdbc:KIND:" in ended.report["error"]


@pytest.mark.parametrize(
    ("text", "code", "sentence"),
    [
        ("java.sql.SQLException: No suitable driver\n\tat x", ExitCode.ARGUMENTS, "has no JDBC driver"),
        (
            'o.p.PSQLException: FATAL: password authentication failed for user "u"\n\tat x',
            ExitCode.ARGUMENTS,
            'refuses the login: o.p.PSQLException: FATAL: password authentication failed for user "u"',
        ),
        (
            "x\nCaused by: j.SQLException: Access denied for user 'u'@'h'",
            ExitCode.ARGUMENTS,
            "refuses the login: j.SQL",
        ),
        ("o.p.PSQLException: Connection to h:1 refused.", ExitCode.DATABASE, "does not answer: o.p.PSQL"),
        ("c.m.CommunicationsException: Communications link failure", ExitCode.DATABASE, "does not answer"),
        (
            "An error occurred while calling o42.load.\n"
            ": java.sql.SQLSyntaxErrorException: Table 'T' is not there",
            ExitCode.DATA,
            "refuses: java.sql.SQLSyntaxErrorException: Table 'T' is not there",
        ),
        (
            'x\n: o.p.PSQLException: ERROR: relation "t" does not exist\n  P',
            ExitCode.DATA,
            "refuses: o.p.PSQLEx",
        ),
        (
            "x\n: o.p.PSQLException: ERROR: out of memory",
            ExitCode.FAILED,
            "refuses: o.p.PSQLException: ERROR: out",
        ),
    ],
)
def test_what_a_jdbc_driver_says_has_a_code_and_a_sentence(text, code, sentence):
    found = jdbc_error(text)

    assert found is not None
    assert found[0] == code
    assert sentence in found[1]
    assert jdbc_error("division by zero") is None


def test_the_driver_of_a_jar_is_named_to_spark_which_finds_it_only_so():
    assert driver_of("jdbc:postgresql://h/d") == {"driver": "org.postgresql.Driver"}
    assert driver_of("jdbc:derby:/x;create=true") == {}


def test_passwords_of_a_jdbc_url_are_hidden_wherever_they_are_in_it():
    for url in (
        "jdbc:mysql://u:hush@h/d",
        "jdbc:postgresql://h/d?user=u&password=hush",
        "jdbc:sqlserver://h;password=hush;a=b",
    ):
        given = Credentials(redis_url="redis://h", jdbc_url=url)
        assert "hush" not in given.hidden_in(f"cannot connect to {url} with hush")

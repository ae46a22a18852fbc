"""The examples in the docstrings of public names run; a public name without one is listed here."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from docs_site.public_names import PREPARATIONS, PublicName, public_names
from tests.with_airflow import home

home.choose()

PAGES = ("conquiet", "mq", "tasks", "spark", "dagster", "airflow")
#: What has no example yet. Give a new name one instead of adding it here.
WITHOUT: dict[str, str] = {
    "conquiet": (
        "DatabaseUnavailableError EmbeddedServerError MalformedEntry MessageRejectedError "
        "NotReplicatedError peek_backlog_async"
    ),
    "mq": (
        "DeadLetterPage DeadLetterRecord DelayedMessage Envelope GroupPlace LeaseLostError MessagePage "
        "ReplayReport StoredMessage is_any_due_async topic_streams_async total_backlog"
    ),
    "tasks": (
        "AsyncTaskEvents Beat BeatCollector BeatConfig Bucket DeadLetterError DirectoryPayloads "
        "HardLimitPoolError HardTimeLimitError KeptSchedule MessageTarget Middleware PayloadError "
        "PayloadPurgeError PayloadStore PayloadStoreError ProcessDiedError ProcessWorker RateLimiter "
        "RedisScheduleStore ResultStore ResultTimeoutError Revocation ScheduleChangedError ScheduleStore "
        "SoftTimeLimitError SqlPayloads SqlResults TaskError TaskEvent TaskEvents TaskExitError "
        "TaskResultError TaskRevokedError TaskTarget TaskTooLargeError UnknownScheduleError "
        "UnknownTaskError WorkerDescription add_maintenance load_schedules"
    ),
    "spark": (
        "DataLossError MalformedRowsError QueryMetrics RedisStreamSource RowsDifferError RowsLostError "
        "SourceBacklog drain_batch publish_tasks source_backlogs"
    ),
    "dagster": (
        "ConnectionComponent PartitionMissingError PipesMessagesLostError RedisStreamIOManager "
        "RedisStreamMessageReader RedisStreamMessageWriter RowError RowsMissingError SparkJobSpec "
        "StreamDrainComponent TopicDrainComponent build_dead_letter_check build_lag_growth_check "
        "build_spark_asset build_topic_backlog_sensor topic_partitions"
    ),
    "airflow": "AckByRunSensor MatchTrigger RunTrigger SparkPublishOperator TakeOperator TaskTrigger",
}


def example_of(name: PublicName) -> str:
    docstring = inspect.getdoc(name.load()) or ""
    return docstring.partition("Examples:\n")[2]


@pytest.mark.parametrize("page", PAGES)
def test_public_names_without_an_example_are_listed(page: str):
    without = {one.name for one in public_names(page) if ">>>" not in example_of(one)}

    assert without == set(WITHOUT.get(page, "").split())


@pytest.fixture(scope="module")
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """What a page of the reference begins with, executed once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("reference"))
        prepared: dict[str, Any] = {}
        exec(compile(PREPARATIONS[request.param], f"reference/{request.param}.md", "exec"), prepared)
        yield prepared
        if "worker" in prepared:
            prepared["worker"].stop()
            prepared["worker"].join()
        if "server" in prepared:
            prepared["engine"].dispose()
            prepared["client"].close()
            prepared["server"].stop()


def examples() -> Iterator[Any]:
    for page in PAGES:
        marks = [pytest.mark.xdist_group("spark" if page == "spark" else "docstrings")]
        for one in public_names(page):
            if ">>>" in example_of(one):
                yield pytest.param(page, one, marks=marks, id=f"{page}:{one.name}")


@pytest.mark.parametrize(("stage", "name"), list(examples()), indirect=["stage"], scope="module")
def test_the_example_of_a_public_name_runs(name: PublicName, stage):
    given = {**stage, name.name: name.load()}
    test = doctest.DocTestParser().get_doctest(example_of(name), given, str(name), None, 0)
    said: list[str] = []

    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    result = runner.run(test, out=said.append, clear_globs=False)

    assert result.attempted > 0
    assert result.failed == 0, "".join(said)

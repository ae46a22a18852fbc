"""StreamDrainComponent: from YAML to definitions that drain, and known to `dg`."""

from __future__ import annotations

import re
import subprocess
import sys
import traceback
import uuid
from importlib.metadata import entry_points, version
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
import yaml
from dagster._config import Shape, validate_config
from dagster._core.instance.config import dagster_instance_config_schema
from dagster.components.core.package_entry import discover_entry_point_package_objects
from dagster.components.testing import create_defs_folder_sandbox
from dagster_shared.libraries import DagsterLibraryRegistry
from sqlalchemy import text

import dagster_conquiet
from conquiet.mq import Producer, Topics
from dagster_conquiet import (
    ConnectionComponent,
    StreamDrainComponent,
    TopicDrainComponent,
    spec_of,
    stream_asset_key,
)
from dagster_conquiet.partitions import dynamic_topic_partitions
from tests.eventually import HANG_S

DOCS = Path(__file__).parents[2] / "docs" / "dagster.md"
HANDLER = "tests.with_dagster.handlers:note_effect"
YAML = """
type: dagster_conquiet.StreamDrainComponent
attributes:
  stream: "{stream}"
  group: billing
  handler: tests.with_dagster.handlers:note_effect
  asset:
    key: shop/bills
    description: One row per order
    group_name: shop
  max_messages: 500
  sensor:
    minimum_interval_seconds: 15
  recovery:
    cron_schedule: "*/10 * * * *"
    min_idle_ms: 0
  checks:
    max_lag: 100
    max_age_s: 60
    max_oldest_age_s: 120
    max_lag_growth: 50
    severity: ERROR
  redis_url_variable: COMPONENT_REDIS_URL
  database_url_variable: COMPONENT_DATABASE_URL
"""


@pytest.fixture
def defs(stream, server_url, database_url, monkeypatch):
    """What the YAML above makes."""
    monkeypatch.setenv("COMPONENT_REDIS_URL", server_url)
    monkeypatch.setenv("COMPONENT_DATABASE_URL", database_url)
    contents = yaml.safe_load(YAML.format(stream=stream))
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(StreamDrainComponent, defs_yaml_contents=contents)
        with sandbox.load_component_and_build_defs(path) as (component, made):
            assert isinstance(component, StreamDrainComponent)
            yield made


YAML_OF_THE_DOCS = [
    yaml.safe_load(text)
    for text in re.findall(r"^```yaml\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)
]


def test_dagster_knows_the_settings_of_an_instance_in_the_docs():
    [settings] = [contents for contents in YAML_OF_THE_DOCS if "type" not in contents]

    validated = validate_config(Shape(dagster_instance_config_schema()), settings)

    assert validated.success, validated.errors


@pytest.mark.parametrize(
    "contents",
    [contents for contents in YAML_OF_THE_DOCS if "type" in contents],
    ids=lambda contents: contents["type"],
)
def test_the_components_of_the_docs_are_read(contents, server_url, database_url, monkeypatch):
    monkeypatch.setenv("REDIS_URL", server_url)
    monkeypatch.setenv("DATABASE_URL", database_url)
    component = getattr(dagster_conquiet, contents["type"].partition(".")[2])
    # A handler that there is: that of the page is one of the reader's.
    if "handler" in contents["attributes"]:
        contents = contents | {"attributes": contents["attributes"] | {"handler": HANDLER}}

    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(component, defs_yaml_contents=contents)
        with sandbox.load_component_and_build_defs(path) as (loaded, made):
            assert isinstance(loaded, component)
            dg.Definitions.validate_loadable(made)


def test_the_yaml_makes_assets_checks_jobs_a_sensor_and_a_schedule(defs, stream):
    graph = defs.resolve_asset_graph()
    bills = dg.AssetKey(["shop", "bills"])
    sensor = next(iter(defs.sensors))
    schedules = {schedule.job_name: schedule.cron_schedule for schedule in defs.schedules}

    assert set(graph.get_all_asset_keys()) == {bills, stream_asset_key(stream)}
    assert graph.get(bills).description == "One row per order"
    assert graph.get(bills).group_name == "shop"
    assert graph.get(bills).parent_keys == {stream_asset_key(stream)}
    assert graph.get(stream_asset_key(stream)).group_name == "shop"
    assert len(graph.asset_check_keys) == 5
    assert {schedule.tags["conquiet/stream"] for schedule in defs.schedules} == {stream}
    assert sensor.minimum_interval_seconds == 15
    assert sensor.default_status == dg.DefaultSensorStatus.RUNNING
    assert sorted(schedules.values()) == ["*/10 * * * *", "*/5 * * * *"]


def test_its_job_drains_the_stream(defs, stream, instance, enqueue, effects_seen, pending):
    ids = enqueue(5)
    name = next(iter(defs.sensors)).job_name

    result = defs.resolve_job_def(name).execute_in_process(instance=instance)

    assert result.success
    assert effects_seen() == sorted(ids)
    assert pending() == 0


def test_its_recovery_takes_what_a_dead_step_left(defs, instance, enqueue, make_queue, effects_seen):
    ids = enqueue(3)
    make_queue("dead").read(block_ms=100, count=3)
    names = [schedule.job_name for schedule in defs.schedules]
    recovery = next(name for name in names if name.startswith("claim_stale_"))

    defs.resolve_job_def(recovery).execute_in_process(instance=instance)

    assert effects_seen() == sorted(ids)


def test_its_checks_have_a_job_of_their_own(defs, instance, enqueue):
    enqueue(101)
    names = [schedule.job_name for schedule in defs.schedules]
    checks = next(name for name in names if name.startswith("check_"))

    result = defs.resolve_job_def(checks).execute_in_process(instance=instance)

    found = result.get_asset_check_evaluations()
    passed = {check.check_name.partition("__")[0]: check.passed for check in found}
    assert passed == {
        "backlog": False,
        "lag_growth": True,
        "freshness": True,
        "oldest_age": True,
        "dead_letters": True,
    }
    assert {check.severity for check in found} == {dg.AssetCheckSeverity.ERROR}


def test_the_entry_point_shows_the_component_to_dg():
    registered = {point.value for point in entry_points(group="dagster_dg_cli.registry_modules")}
    found = {key.to_typename(): thing for key, thing in discover_entry_point_package_objects().items()}

    assert "dagster_conquiet" in registered
    # By their public name alone, as those of Dagster's own libraries.
    assert {name for name in found if name.startswith("dagster_conquiet")} == {
        f"dagster_conquiet.{kind}Component" for kind in ("Connection", "StreamDrain", "TopicDrain")
    }
    assert found["dagster_conquiet.StreamDrainComponent"] is StreamDrainComponent


def test_the_components_are_found_where_nothing_but_the_extra_of_dagster_is_installed():
    # `dg` looks at every public name of the package, those of tasks and Spark too.
    program = (
        "import sys; sys.modules |= dict.fromkeys(('cronsim', 'dateutil', 'cryptography', 'pyspark'));"
        "from dagster.components.core.package_entry import get_package_objects_in_module;"
        "import dagster_conquiet;"
        "print(*sorted(name for name, _ in get_package_objects_in_module(dagster_conquiet)))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=True
    )

    assert done.stdout.split() == ["ConnectionComponent", "StreamDrainComponent", "TopicDrainComponent"]


@pytest.mark.parametrize("component", [StreamDrainComponent, TopicDrainComponent])
def test_what_is_scaffolded_loads_and_runs_as_it_stands(
    component, client, server_url, database_url, engine, monkeypatch, instance
):
    monkeypatch.setenv("REDIS_URL", server_url)
    monkeypatch.setenv("DATABASE_URL", database_url)
    source = f"orders-{uuid.uuid4().hex[:12]}"
    name = "topic" if component is TopicDrainComponent else "stream"
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(component, scaffold_params={name: source, "group": "billing"})
        with sandbox.load_component_and_build_defs(path) as (_, made):
            job = made.resolve_job_def(job_of(made, ""))
            if name == "topic":
                Topics(client).create(source, partitions=1)
                Producer(client).send(source, {"n": 1})
                instance.add_dynamic_partitions(dynamic_topic_partitions(source).name or "", ["0"])
            else:
                client.xadd(source, {"data": '{"n": 1}'})
            partition = "0" if name == "topic" else None
            result = job.execute_in_process(instance=instance, partition_key=partition)

    assert result.success
    with engine.connect() as connection:
        assert connection.execute(text("SELECT payload FROM handled_messages")).scalars().all() == [
            '{"n": 1}'
        ]


def job_of(defs, ending) -> str:
    """The job of the first sensor whose name ends so."""
    return next(sensor.job_name for sensor in defs.sensors if sensor.name.endswith(ending))


def yaml_of(component, **attributes):
    """A component without variables of its own."""
    handler = "tests.with_dagster.handlers:note_effect"
    return {"type": f"dagster_conquiet.{component}", "attributes": {"handler": handler, **attributes}}


def test_several_components_of_a_project_share_their_connections(
    stream, enqueue, instance, effects_seen, server_url, database_url, monkeypatch
):
    monkeypatch.setenv("REDIS_URL", server_url)
    monkeypatch.setenv("DATABASE_URL", database_url)
    variables = {"redis_url_variable": "REDIS_URL", "database_url_variable": "DATABASE_URL"}
    shared = yaml_of("StreamDrainComponent", stream=stream, group="billing")
    own = yaml_of("StreamDrainComponent", stream=stream, group="pricing", **variables)
    other = yaml_of("StreamDrainComponent", stream=f"{stream}:b", group="pricing", **variables)
    topic = yaml_of("TopicDrainComponent", topic="payments", group="billing", partitions=2)
    connection = {"type": "dagster_conquiet.ConnectionComponent", "attributes": {}}
    made = []
    with create_defs_folder_sandbox() as sandbox:
        for number, contents in enumerate((shared, own, other, topic, connection)):
            path = sandbox.scaffold_component(
                ConnectionComponent, defs_path=f"part_{number}", defs_yaml_contents=contents
            )
            with sandbox.load_component_and_build_defs(path) as (_, defs):
                made.append(defs)
    together = dg.Definitions.merge(*made[:1], *made[1:])
    ids = enqueue(2)

    for group in ("billing", "pricing"):
        together.resolve_job_def(job_of(together, f"__{group}")).execute_in_process(instance=instance)

    dg.Definitions.validate_loadable(together)
    assert effects_seen() == sorted(ids * 2)


def test_the_library_is_registered_under_the_name_of_its_distribution():
    assert DagsterLibraryRegistry.get()["conquiet"] == dagster_conquiet.__version__ == version("conquiet")


@pytest.mark.parametrize("component", ["StreamDrainComponent", "TopicDrainComponent"])
def test_what_the_yaml_says_of_a_run_is_the_default_of_its_config(component, stream):
    contents = yaml_of(
        component,
        group="billing",
        **{"topic" if component == "TopicDrainComponent" else "stream": stream},
        max_messages=7,
        concurrency=2,
        order_by="n",
        log_errors=True,
        fail_when={"dead_letters": None, "failures": 3},
    )
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(StreamDrainComponent, defs_yaml_contents=contents)
        with sandbox.load_component_and_build_defs(path) as (_, made):
            (drained,) = [asset for asset in made.assets or () if isinstance(asset, dg.AssetsDefinition)]

    config = spec_of(drained).config
    assert (config.max_messages, config.concurrency, config.order_by) == (7, 2, "n")
    assert (config.log_errors, config.fail_when.dead_letters, config.fail_when.failures) == (True, None, 3)


def test_a_handler_of_the_yaml_is_given_the_resources_that_it_names(
    stream, enqueue, instance, resources, effects_seen
):
    ids = enqueue(2)
    contents = yaml_of("StreamDrainComponent", stream=stream, group="billing", resources=["prices"])
    contents["attributes"]["handler"] = "tests.with_dagster.handlers:note_effect_with_prices"
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(StreamDrainComponent, defs_yaml_contents=contents)
        with sandbox.load_component_and_build_defs(path) as (_, made):
            prices = {"prices": SimpleNamespace(factor=2)}
            defs = dg.Definitions.merge(made, dg.Definitions(resources=resources | prices))
            defs.resolve_job_def(job_of(made, "")).execute_in_process(instance=instance)

    assert effects_seen() == sorted(ids)


def test_the_checks_of_the_yaml_may_block_with_words_and_automation_of_their_own(stream):
    checks = {
        "max_lag": 10,
        "blocking": True,
        "descriptions": {"backlog": "Call the shop"},
        # What newer versions of Dagster call dg.AutomationCondition.
        "automation_condition": "{{ automation_condition.eager() }}",
    }
    contents = yaml_of("StreamDrainComponent", stream=stream, group="billing", checks=checks)
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(StreamDrainComponent, defs_yaml_contents=contents)
        with sandbox.load_component_and_build_defs(path) as (_, made):
            specs = [spec for check in made.asset_checks or () for spec in check.check_specs]

    assert all(spec.blocking for spec in specs)
    assert {spec.automation_condition for spec in specs} == {dg.AutomationCondition.eager()}
    assert [spec.description for spec in specs if spec.name.startswith("backlog")] == ["Call the shop"]
    assert len({spec.description for spec in specs}) == 2


def test_a_description_of_a_check_that_there_is_not_is_refused(stream):
    checks = {"descriptions": {"backlogs": "Call the shop"}}
    contents = yaml_of("StreamDrainComponent", stream=stream, group="billing", checks=checks)
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(StreamDrainComponent, defs_yaml_contents=contents)

        with pytest.raises(Exception) as caught, sandbox.load_component_and_build_defs(path):  # noqa: PT011
            pass

    assert "descriptions of checks are of backlog, " in "".join(traceback.format_exception(caught.value))


def test_a_wrong_attribute_is_refused_with_its_name(stream):
    contents = yaml.safe_load(YAML.format(stream=stream))
    contents["attributes"]["max_mesages"] = 5
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(StreamDrainComponent, defs_yaml_contents=contents)

        with pytest.raises(Exception) as caught, sandbox.load_component_and_build_defs(path):  # noqa: PT011
            pass

    assert "max_mesages" in "".join(traceback.format_exception(caught.value))

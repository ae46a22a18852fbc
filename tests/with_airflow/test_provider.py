"""What Airflow knows of the provider: its commands list it, its form has the fields, its names exist."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, requires, version
from urllib.parse import urlsplit

import pytest
from airflow.providers_manager import ProvidersManager
from airflow.sdk import Asset
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime
from packaging.requirements import Requirement

from airflow_provider_conquiet.assets.redis_stream import create_asset, openlineage_name, sanitize_uri
from airflow_provider_conquiet.get_provider_info import get_provider_info
from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook
from airflow_provider_conquiet.hooks.server import CERT_REQS, FIELDS, MODES
from airflow_provider_conquiet.plugins import conquiet as conquiet_plugin
from conquiet.errors import MissingExtraError
from tests.eventually import HANG_S


def airflow(*arguments: str) -> str:
    """What the command prints."""
    command = [sys.executable, "-m", "airflow", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=HANG_S, env=os.environ, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_airflows_own_command_shows_the_provider():
    assert "conquiet" in json.dumps(json.loads(airflow("providers", "get", "conquiet", "--output", "json")))


def test_airflow_registers_what_the_provider_names():
    known = ProvidersManager()

    assert "redis_streams" in known.hooks
    assert {"airflow_provider_conquiet.triggers.backlog"} <= {
        name for info in known.trigger for name in [info.trigger_class_name]
    }
    assert "airflow_provider_conquiet.queues.redis_stream.RedisStreamMessageQueueProvider" in (
        known.queue_class_names
    )
    assert "redis_streams" in known.field_behaviours


@pytest.mark.parametrize(
    ("distribution", "found"), [("apache-airflow-core", "3.0.6"), ("common-compat", None)]
)
def test_an_older_airflow_gets_a_name_and_nothing_that_it_could_not_import(monkeypatch, distribution, found):
    def installed(name: str) -> str:
        if not name.endswith(distribution):
            return version(name)
        if found is None:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr("airflow_provider_conquiet.get_provider_info.version", installed)

    info = get_provider_info()

    assert set(info) == {"package-name", "name", "description"}
    assert info["package-name"] == "conquiet"
    assert "pip install 'conquiet[airflow]'" in info["description"]


@pytest.mark.parametrize(("core", "count"), [("3.0.6", 0), ("3.1.0", 1)])
def test_beside_an_older_airflow_the_plugin_has_neither_page_nor_menu(monkeypatch, core, count):
    def installed(name: str) -> str:
        return core if name == "apache-airflow-core" else version(name)

    monkeypatch.setattr("airflow_provider_conquiet.get_provider_info.version", installed)

    plugin = runpy.run_path(str(conquiet_plugin.__file__))["ConquietPlugin"]

    assert (len(plugin.fastapi_apps), len(plugin.external_views)) == (count, count)


def test_the_extra_for_airflow_brings_no_spark():
    """Whatever its requirements require in turn."""
    seen: set[tuple[str, str]] = set()
    left = [("conquiet", "airflow")]
    while left:
        name, extra = one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        with suppress(PackageNotFoundError):
            for needed in map(Requirement, requires(name) or []):
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    left += [(needed.name.lower(), more) for more in ("", *needed.extras)]

    brought = {name for name, _ in seen}
    assert {"apache-airflow-core", "sqlalchemy"} <= brought
    assert not {"pyspark", "apache-airflow-providers-apache-spark"} & brought


def test_without_airflows_provider_for_spark_its_operator_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "airflow.providers.apache.spark", None)
    for name in [name for name in sys.modules if name.startswith("airflow.providers.apache.spark.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "airflow_provider_conquiet.operators.spark", raising=False)

    with pytest.raises(MissingExtraError, match=r"conquiet\[airflow-spark\]"):
        import_module("airflow_provider_conquiet.operators.spark")


def test_every_module_and_class_that_is_registered_exists():
    info = get_provider_info()

    for kind in ("hooks", "operators", "sensors", "triggers"):
        for name in info[kind][0]["python-modules"]:
            import_module(name)
    paths = [
        info["connection-types"][0]["hook-class-name"],
        *info["queues"],
        info["plugins"][0]["plugin-class"],
    ]
    paths += [decorator["class-name"] for decorator in info["task-decorators"]]
    uris = info["asset-uris"][0]
    for path in (*paths, uris["handler"], uris["factory"], uris["to_openlineage_converter"]):
        module, _, name = path.rpartition(".")
        assert callable(getattr(import_module(module), name)), path


def test_the_plugin_is_found_by_its_entry_point():
    [plugin] = entry_points(group="airflow.plugins", name="conquiet")

    assert plugin.load().name == "conquiet"


def test_the_connection_form_has_the_fields_that_the_hook_reads():
    form = get_provider_info()["connection-types"][0]

    assert form["connection-type"] == RedisStreamsHook.conn_type
    fields = form["conn-fields"]
    secret = {name for name, field in fields.items() if field["schema"].get("format") == "password"}
    assert secret == {"db_url_secret", "sentinel_password", "key_password"}
    assert fields["mode"]["schema"]["enum"] == list(MODES)
    assert fields["ssl_cert_reqs"]["schema"]["enum"] == list(CERT_REQS)
    assert set(fields) == FIELDS - {"cluster", "db_url"}
    assert form["ui-field-behaviour"]["relabeling"] == {"login": "ACL user"}
    known = ProvidersManagerTaskRuntime().hooks["redis_streams"]
    assert known is not None
    assert known.hook_name == RedisStreamsHook.hook_name


@pytest.mark.parametrize(
    ("given", "uri"),
    [
        ("redis+stream://Redis.Example/orders", "redis+stream://redis.example:6379/orders"),
        ("redis+stream://user:secret@r:7000/orders:eu", "redis+stream://r:7000/orders:eu"),
        ("redis+stream://[::1]/orders", "redis+stream://[::1]:6379/orders"),
    ],
)
def test_one_stream_has_one_asset_uri(given, uri):
    assert sanitize_uri(urlsplit(given)).geturl() == uri


def test_airflow_sanitizes_the_uris_of_assets():
    assert Asset("redis+stream://r/orders").uri == "redis+stream://r:6379/orders"


@pytest.mark.parametrize("uri", ["redis+stream://r", "redis+stream:///orders", "redis+stream://r/a/b"])
def test_a_uri_that_names_no_stream_is_refused(uri):
    with pytest.raises(ValueError, match="stream"):
        sanitize_uri(urlsplit(uri))


def test_the_factory_names_a_stream_whatever_its_letters():
    asset = create_asset(stream="a/b c", host="r")

    assert asset.uri == "redis+stream://r:6379/a%2Fb%20c"


def test_openlineage_knows_a_stream_by_server_and_name():
    assert openlineage_name(create_asset(stream="a/b", host="r").uri) == ("redis://r:6379", "a/b")

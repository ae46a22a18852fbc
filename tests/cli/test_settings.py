"""Settings: code over config file over environment, nothing unknown, no password shown."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from conquiet.errors import ConquietError, SettingsError
from conquiet.settings import Settings

ENVIRONMENT = {"CONQUIET_REDIS_URL": "redis://environment:1", "CONQUIET_GROUP": "environment"}


def write(path, text):
    path.write_text(text)
    return path


def test_the_code_wins_over_the_file_and_the_file_over_the_environment(tmp_path):
    write(tmp_path / "conquiet.toml", 'redis_url = "redis://file:1"\ngroup = "file"\n')
    load = {"directory": tmp_path, "environment": ENVIRONMENT | {"CONQUIET_DATABASE_URL": "sqlite://"}}

    settings = Settings.load(**load, redis_url="redis://code:1", group=None)

    assert (settings.redis_url, settings.group, settings.database_url) == (
        "redis://code:1",
        "file",
        "sqlite://",
    )


def test_the_file_is_the_named_one_or_the_own_one_or_a_part_of_pyproject(tmp_path):
    write(tmp_path / "pyproject.toml", '[tool.conquiet]\ngroup = "pyproject"\n[tool.other]\nx = 1\n')
    assert Settings.load(directory=tmp_path, environment={}).group == "pyproject"
    write(tmp_path / "conquiet.toml", 'group = "own"\n')
    assert Settings.load(directory=tmp_path, environment={}).group == "own"
    named = write(tmp_path / "named.yaml", "group: named\n")
    assert Settings.load(directory=tmp_path, environment={"CONQUIET_CONFIG": str(named)}).group == "named"
    given = write(tmp_path / "given.toml", 'group = "given"\n')
    environment = {"CONQUIET_CONFIG": str(named)}
    assert Settings.load(directory=tmp_path, environment=environment, config=given).group == "given"


def test_every_setting_has_its_variable(tmp_path):
    environment = {
        "CONQUIET_REDIS_URL": "redis://h:1",
        "CONQUIET_DATABASE_URL": "sqlite://",
        "CONQUIET_GROUP": "billing",
        "CONQUIET_SERVER_BIN": "/bin/server",
        "CONQUIET_LOG_LEVEL": "info",
        "CONQUIET_LOG_FORMAT": "json",
        "CONQUIET_TRACING": "1",
        "CONQUIET_TRACING_FIELD": "_trace",
        "CONQUIET_PAGE_URL": "http://queues",
        "CONQUIET_PAGE_TOKEN": "token-of-operators",
        "CONQUIET_PAGE_VIEWER_TOKEN": "token-of-viewers",
        "CONQUIET_PAGE_USERS": "/etc/users",
        "CONQUIET_PAGE_USER_HEADER": "X-User",
        "CONQUIET_PAGE_PROXIES": "10.0.0.1",
        "CONQUIET_PAGE_OPERATORS": "ann",
        "CONQUIET_PAGE_SECRET": "secret-of-the-page",
        "CONQUIET_PAGE_MASK": "card",
        "CONQUIET_PAGE_TRACE_URL": "http://traces/{trace_id}",
        "CONQUIET_PAGE_PROMETHEUS_URL": "http://prometheus",
    }

    settings = Settings.load(directory=tmp_path, environment=environment)

    assert list(dataclasses.astuple(settings)) == list(environment.values())
    assert settings == Settings.from_environment(environment)


def test_without_anything_there_are_defaults(tmp_path):
    settings = Settings.load(directory=tmp_path, environment={"CONQUIET_GROUP": ""})

    assert settings == Settings()
    assert settings.redis_url == "redis://127.0.0.1:6379/0"


@pytest.mark.parametrize(
    ("text", "key", "sentence"),
    [
        (
            'redis_ulr = "x"',
            "redis_ulr",
            "redis_ulr in .*conquiet.toml is not a setting; did you mean redis_url",
        ),
        ("group = 7", "group", "group in .*conquiet.toml must be text, got int"),
        ("zebra = 'x'", "zebra", "known are redis_url, database_url, group"),
        ("log_level = 'loud'", "log_level", "must be one of debug, info, warning, error"),
        ("log_format = 'xml'", "log_format", "must be one of text, json"),
        ("tracing = 'yes'", "tracing", "must be one of off, on"),
    ],
)
def test_a_wrong_key_in_the_file_is_named(tmp_path, text, key, sentence):
    write(tmp_path / "conquiet.toml", text)

    with pytest.raises(SettingsError, match=sentence) as caught:
        Settings.load(directory=tmp_path, environment={})

    assert caught.value.key == key


def test_an_unknown_variable_and_an_unknown_argument_are_named(tmp_path):
    with pytest.raises(
        SettingsError, match=r"CONQUIET_DATABSE_URL in the environment .*CONQUIET_DATABASE_URL"
    ):
        Settings.load(directory=tmp_path, environment={"CONQUIET_DATABSE_URL": "x"})
    with pytest.raises(SettingsError, match="url in the call is not a setting; known are redis_url"):
        Settings.load(directory=tmp_path, environment={}, url="x")
    assert Settings.load(directory=tmp_path, environment={"CONQUIET_TEST_REQUIRE": "redis"}) == Settings()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.toml", 'redis_url = "redis://:tr0ub4dor@h'),
        ("x.yaml", 'redis_url: "redis://:tr0ub4dor@h\n  - ['),
        ("x.yaml", "- tr0ub4dor\n"),
        ("x.toml", b"\xff tr0ub4dor"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_named_without_its_text(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())

    with pytest.raises(SettingsError, match=f"{name} cannot be read") as caught:
        Settings.load(config=path, environment={})

    assert "tr0ub4dor" not in everything_of(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"nowhere.toml cannot be read: No such file"):
        Settings.load(config=tmp_path / "nowhere.toml", environment={})


def test_yaml_without_pyyaml_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = write(tmp_path / "x.yaml", "group: a\n")

    with pytest.raises(SettingsError, match=r"pip install 'conquiet\[cli\]'"):
        Settings.load(config=path, environment={})


def test_settings_show_no_password():
    settings = Settings(
        redis_url="redis://worker:tr0ub4dor@h:1/0?sentinel_password=c0rrecth0rse",
        database_url="postgresql://app:b4tterystaple@h/x",
    )

    for text in (repr(settings), str(settings), f"{settings}"):
        assert "redis://worker:***@h:1/0?sentinel_password=***" in text
        assert not any(secret in text for secret in ("tr0ub4dor", "c0rrecth0rse", "b4tterystaple"))


def everything_of(error: BaseException) -> str:
    """Whatever a log could show of an error, its chain included."""
    shown = ""
    current: BaseException | None = error
    while current is not None:
        notes = getattr(current, "__notes__", [])
        shown += (
            f"{current} {current!r} {notes} {vars(current) if isinstance(current, ConquietError) else ''}"
        )
        current = current.__cause__ or current.__context__
    return shown

"""The suite that users run on their payload stores: ours pass it, and wrong ones do not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import Engine

from conquiet.tasks import DirectoryPayloads, PayloadStore, SqlPayloads
from conquiet.testing import PayloadStoreContract


class TestDirectoryPayloads(PayloadStoreContract):
    """Files, in a directory that is made before."""

    @pytest.fixture(autouse=True)
    def _use(self, tmp_path: Path) -> None:
        self._directory = tmp_path / "not" / "there" / "yet"
        DirectoryPayloads(self._directory).create()

    def make_store(self) -> PayloadStore:
        """As a process makes it."""
        return DirectoryPayloads(self._directory)


class TestSqlPayloads(PayloadStoreContract):
    """Rows, in the database of the tests."""

    @pytest.fixture(autouse=True)
    def _use(self, engine: Engine) -> None:
        self._engine = engine

    def make_store(self) -> PayloadStore:
        """As a process makes it."""
        return SqlPayloads(self._engine)


class InMemory:
    """As users write one, and forget that workers are other processes."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}

    def put(self, key: str, content: bytes) -> None:
        self._contents[key] = content

    def get(self, key: str) -> bytes | None:
        return self._contents.get(key)

    def delete(self, key: str) -> None:
        del self._contents[key]


def test_a_wrong_store_is_found() -> None:
    class Wrong(PayloadStoreContract):
        def make_store(self) -> PayloadStore:
            return InMemory()

    suite, failed = Wrong(), set()
    for name in dir(suite):
        if name.startswith("test_"):
            try:
                getattr(suite, name)()
            except Exception:
                failed.add(name)

    assert failed == {
        "test_another_process_reads_what_was_written",
        "test_what_was_deleted_is_none",
        "test_deleting_what_is_not_there_is_no_error",
    }


@pytest.mark.parametrize("key", ["../secret", "a/b", "", ".", "a\0b", "x" * 200])
def test_a_directory_reads_and_deletes_nothing_outside_of_it(tmp_path: Path, key: str) -> None:
    (tmp_path / "secret").write_text("secret")
    store = DirectoryPayloads(tmp_path / "payloads")

    for use in (store.get, store.delete, lambda key: store.put(key, b"")):
        with pytest.raises(ValueError, match="key must have only"):
            use(key)

    assert (tmp_path / "secret").read_text() == "secret"


@pytest.mark.parametrize("is_there", [True, False])
def test_a_directory_that_is_not_mounted_is_an_error_and_not_missing_content(
    tmp_path: Path, is_there: bool
) -> None:
    mount, key = tmp_path / "mount", "a" * 32
    if is_there:
        mount.mkdir()
    store = DirectoryPayloads(mount)

    for use in (store.get, store.delete, lambda key: store.put(key, b"")):
        with pytest.raises(FileNotFoundError, match="not mounted"):
            use(key)

    # Nothing was written into what is under the mount.
    assert list(tmp_path.rglob("*")) == [mount] * is_there


def test_a_directory_that_is_mounted_again_has_its_content(tmp_path: Path) -> None:
    mount, away, key = tmp_path / "mount", tmp_path / "away", "a" * 32
    store = DirectoryPayloads(mount)
    store.create()
    store.put(key, b"content")

    mount.rename(away)
    mount.mkdir()
    with pytest.raises(FileNotFoundError, match="not mounted"):
        store.get(key)
    mount.rmdir()
    away.rename(mount)
    store.create()

    assert store.get(key) == b"content"


def test_the_names_of_a_new_file_and_of_its_new_directory_survive_a_crash_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, key = DirectoryPayloads(tmp_path), "a" * 32
    store.create()
    steps: list[str] = []
    sync, rename = os.fsync, Path.replace

    def recorded_sync(descriptor: int) -> None:
        steps.append(str(Path(f"/proc/self/fd/{descriptor}").resolve().relative_to(tmp_path)))
        sync(descriptor)

    def recorded_rename(path: Path, target: Path) -> Path:
        steps.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", recorded_sync)
    monkeypatch.setattr(Path, "replace", recorded_rename)
    store.put(key, b"content")

    assert steps == [f"aa/{key}.unfinished", "rename", "aa", "."]


def test_what_a_dead_process_has_half_written_is_not_content_and_is_deleted_with_its_key(
    tmp_path: Path,
) -> None:
    store, key = DirectoryPayloads(tmp_path), "a" * 32
    store.create()
    (tmp_path / "aa").mkdir()
    (tmp_path / "aa" / f"{key}.unfinished").write_bytes(b"hal")

    assert store.get(key) is None
    store.delete(key)

    assert list(tmp_path.rglob("*.unfinished")) == []

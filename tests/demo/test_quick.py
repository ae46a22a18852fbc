"""The short demo, as `make demo ARGS=--quick` runs it."""

from __future__ import annotations

import signal

from tests.demo.running import processes_of, run_demo, start_demo
from tests.eventually import HANG_S, eventually


def test_the_short_demo_ends_with_table_picture_and_proof_and_leaves_nothing(tmp_path):
    run = run_demo(tmp_path, "--quick", "--orders", "500")

    assert run.code == 0, run.printed
    assert run.row("enqueued") == run.row("handled") == run.row("effects in the database") == [500]
    assert run.row("lag") == run.row("pending") == run.row("dead letters") == [0]
    [redelivered], [skipped] = run.row("redelivered"), run.row("skipped by the inbox")
    assert redelivered > skipped > 0
    assert f"{redelivered} messages pending, {skipped} of them committed" in run.printed
    assert "┃ crash" in run.printed
    assert "Totals in the database equal totals sent." in run.printed
    assert run.picture_size() == (1320, 744)
    assert run.left_behind() == []


def test_an_order_that_is_missing_in_the_database_fails_the_demo(tmp_path):
    run = run_demo(tmp_path, "--quick", "--orders", "200", "--lose-one")

    assert run.code == 1, run.printed
    assert run.row("effects in the database") == [199]
    assert "THE TOTALS DIFFER." in run.printed
    assert "equal totals sent" not in run.printed


def test_ctrl_c_ends_every_process_and_removes_the_directory(tmp_path):
    with start_demo(tmp_path, "--quick", "--orders", "5000") as demo:
        eventually(lambda: _is_working(tmp_path))
        demo.send_signal(signal.SIGINT)
        printed, _ = demo.communicate(timeout=HANG_S)

    assert demo.returncode == 130, printed
    assert "nothing is left running" in printed
    assert list(tmp_path.iterdir()) == []
    assert processes_of(tmp_path) == []


def _is_working(directory) -> bool:
    return any("examples.demo.worker" in process.cmdline() for process in processes_of(directory))

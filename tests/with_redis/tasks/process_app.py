"""An app whose tasks run in child processes; they wait for files, and say in files that they run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from conquiet.tasks import RetryPolicy, SoftTimeLimitError, TaskApp, TaskContext, TaskOptions

QUICK = RetryPolicy(base_delay_ms=1, max_delay_ms=5)

app = TaskApp(namespace="process-tests", defaults=TaskOptions(retry=QUICK, max_retries=0))


@app.on_startup
def greet() -> None:
    if folder := os.environ.get("CONQUIET_TEST_HOOKS"):
        Path(folder, f"started.{os.getpid()}").touch()


@app.on_shutdown
async def say_goodbye() -> None:
    if folder := os.environ.get("CONQUIET_TEST_HOOKS"):
        Path(folder, f"ended.{os.getpid()}").touch()


@app.task
def process_id(ctx: TaskContext) -> tuple[int, int]:
    """Its process and its attempt."""
    return os.getpid(), ctx.attempt


@app.task
def wait_for(path: str, ctx: TaskContext) -> int:
    """Says in `path`.begun in which process it runs; ends when `path` is there, or at its second attempt."""
    Path(f"{path}.new").write_text(str(os.getpid()))
    Path(f"{path}.new").rename(f"{path}.begun")
    while ctx.attempt == 0 and not Path(path).exists():
        time.sleep(0.01)
    return ctx.attempt


@app.task
def fail_when_interrupted(path: str, ctx: TaskContext) -> int:
    """As `wait_for`; an interruption in the middle of a lock of it, or of what it uses, is another error."""
    try:
        return wait_for(path, ctx)
    except BaseException as error:
        raise RuntimeError("release unlocked lock") from error


@app.task
def kill_yourself(number: int, ctx: TaskContext) -> int:
    if ctx.attempt == 0:
        os.kill(os.getpid(), number)
        signal.pause()
    return ctx.attempt


@app.task
def leave(code: int) -> None:
    os._exit(code)


@app.task
def exit_politely() -> None:
    sys.exit("enough")


@app.task(max_retries=0)
def press_ctrl_c() -> None:
    raise KeyboardInterrupt


@app.task(hard_time_limit_s=0.3)
def hang(path: str) -> None:
    """Starts a process that would outlive it."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    Path(path).write_text(str(process.pid))
    # Python never comes back from here: only a kill ends it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM})
    while True:
        time.sleep(1)


@app.task(soft_time_limit_s=0.2)
def sleep_for_long() -> str:
    try:
        time.sleep(3600)
    except SoftTimeLimitError as error:
        return str(error)
    return "slept"


@app.task(soft_time_limit_s=0.2)
def sleep_without_care() -> None:
    time.sleep(3600)

"""What operators do: a dry run first, then the change; audited, with the command that does the same."""

from __future__ import annotations

import html
import re
import shlex

import pytest

from conquiet import EmbeddedServer
from conquiet.mq import DeadLetters, MqAdmin, Producer, Topics
from conquiet.operations import AuditLog
from conquiet.page import PageSettings
from conquiet.page.actions.jobs import Done, Jobs, TooManyJobsError
from conquiet.queue import open_client
from conquiet.tasks import TaskApp, Worker, WorkerConfig
from tests.cli.processes import running
from tests.eventually import eventually
from tests.page.forms import fields_of
from tests.page.served import APP, serving, serving_here
from tests.page.shop import app_of, drain_orders, open_shop, send_orders


@pytest.fixture
def shop():
    """One that a test may change."""
    with EmbeddedServer() as server, open_client(server.url) as client:
        yield open_shop(client, server.url)


@pytest.fixture
def page(shop):
    with serving_here(shop.url, PageSettings(secret="s" * 32, app=APP), lambda: app_of(shop)) as served:
        yield served


def letters(shop) -> DeadLetters:
    return DeadLetters(Topics(shop.client).open(shop.topic))


def ask(operator, action: str, **parameters):
    """The question, and the command that it shows."""
    answer = operator.get(f"/act/{action}", params=parameters)
    assert answer.status_code == 200, answer.text[-800:]
    commands = re.findall(r'data-copy="([^"]*)"', answer.text)
    return answer.text, html.unescape(commands[-1])


def confirm(operator, action: str, question: str, **changed: str) -> str:
    """Send its form; what the page says then."""
    answer = operator.post(f"/act/{action}", data=fields_of(question, **changed))
    assert answer.status_code == 200, answer.text[-800:]
    return html.unescape(answer.text)


def test_replay_of_one(operator, shop):
    letter = letters(shop).list().letters[0]

    question, command = ask(operator, "replay", name=shop.topic, id=letter.id)
    assert "1 would be replayed" in question
    assert letters(shop).count() == 3
    said = confirm(operator, "replay", question)

    assert "Replayed 1 dead letters" in said
    assert letters(shop).count() == 2
    assert shlex.split(command) == ["conquiet", "dlq", "replay", shop.topic, letter.id, "--yes"]
    last, first = AuditLog(shop.client).last()
    assert (first.outcome, first.command, first.subject) == ("begun", command, shop.topic)
    assert (last.outcome, last.count, last.began, last.user) == ("done", 1, first.id, "operator")


def test_replay_of_those_that_match_a_filter_and_the_fix_handles_them(operator, shop):
    kind = letters(shop).list().letters[0].error_type
    question, command = ask(operator, "replay", name=shop.topic, error_type=kind)

    assert "3 dead letters match" in question
    assert f"--error-type {kind}" in command
    assert "Replayed 3 dead letters" in confirm(operator, "replay", question)
    assert (letters(shop).count(), drain_orders(shop, is_fixed=True)) == (0, 3)


def test_replay_with_a_rate_runs_behind_the_page_and_can_be_stopped(operator, shop):
    question, _ = ask(operator, "replay", name=shop.topic)
    # Another rate than the dry run was made with: it is asked once more.
    again = confirm(operator, "replay", question, per_second="0.01")
    assert "Dry run" in again
    assert letters(shop).count() == 3

    said = confirm(operator, "replay", again)
    assert "Running" in said
    (job,) = re.findall(r'name="job" value="([\d-]+)"', said)
    token = re.findall(r'name="form_token" value="(\w+)"', said)[0]
    eventually(lambda: letters(shop).count() == 2)
    operator.post("/stop-job", data={"job": job, "form_token": token})
    eventually(lambda: AuditLog(shop.client).last(1)[0].outcome == "stopped")

    last, stopped = AuditLog(shop.client).last(2)
    assert (last.count, letters(shop).count()) == (1, 2)
    assert (stopped.action, stopped.user) == ("stop", "operator")
    assert "Replay all dead letters of orders" in stopped.detail


def test_a_second_click_runs_nothing_twice(operator, shop):
    with app_of(shop) as app:
        before = app.control.queue(shop.queue).queued
        question, _ = ask(operator, "run-schedule", name="nightly")
        first, second = (confirm(operator, "run-schedule", question) for _ in range(2))
        assert app.control.queue(shop.queue).queued == before + 1
        confirm(operator, "run-schedule", ask(operator, "run-schedule", name="nightly")[0])
        assert app.control.queue(shop.queue).queued == before + 2

    assert "Enqueued" in first
    assert "Enqueued" in second


@pytest.mark.parametrize("address", ["replay?name=orders", "purge?name=orders", "cancel-delayed?name=orders"])
def test_nothing_chosen_is_never_all(address, operator):
    answer = operator.get(f"/act/{address}&chosen=1")

    assert answer.status_code == 400
    assert "choose at least one row" in answer.text


def test_nothing_chosen_of_a_queue_is_never_all(operator, shop):
    status = [
        operator.get(f"/act/{action}?queue={shop.queue}&chosen=1").status_code
        for action in ("retry-tasks", "purge-tasks", "revoke")
    ]

    assert status == [400, 400, 400]
    assert operator.get("/act/stop-workers").status_code == 400


def test_a_dry_run_of_tasks_says_how_many_there_are(operator, shop):
    with app_of(shop) as app:
        done = next(one for one in app.control.tasks(shop.queue, "ended").tasks if one.state == "succeeded")
    gone, _ = ask(operator, "retry-tasks", queue=shop.queue, id="1-1")
    ended, _ = ask(operator, "revoke", queue=shop.queue, id=done.id)

    no_worker, _ = ask(operator, "stop-workers", worker="nobody")

    assert operator.get("/act/enable-schedule?name=nowhere").status_code == 404
    assert "0 of 1 are alive" in no_worker
    assert "0 tasks would be enqueued again" in gone
    assert "1 are not there any more" in gone
    assert "0 would not run" in ended
    assert "1 have ended" in ended


def test_a_replay_that_cannot_be_says_why_and_changes_nothing(operator, shop):
    letter = letters(shop).list().letters[0]
    MqAdmin(shop.client).delete_group(shop.topic, shop.group, force=True)

    question, _ = ask(operator, "replay", name=shop.topic, id=letter.id)
    assert "1 cannot be replayed" in question
    assert "disabled" in question
    said = confirm(operator, "replay", question)

    assert "cannot be replayed and stay" in said
    assert letters(shop).count() == 3


def test_purge_of_chosen_ones_and_of_all(operator, shop):
    letter = letters(shop).list().letters[0]

    question, _ = ask(operator, "purge", name=shop.topic, id=letter.id)
    assert "1 dead letters would be deleted for good" in question
    confirm(operator, "purge", question)
    assert letters(shop).count() == 2
    question, command = ask(operator, "purge", name=shop.topic)
    assert "--all" in command
    assert letters(shop).count() == 2
    confirm(operator, "purge", question)

    assert letters(shop).count() == 0


@pytest.mark.parametrize("action", ["purge", "replay"])
def test_letters_that_come_after_the_question_are_left(action, operator, shop):
    question, _ = ask(operator, action, name=shop.topic)
    send_orders(shop, 10)
    drain_orders(shop, is_fixed=False)
    assert letters(shop).count() == 4

    confirm(operator, action, question)

    assert letters(shop).count() == 1


def test_trim_removes_what_every_group_has_finished(operator, shop):
    question, command = ask(operator, "trim", name=shop.topic, keep="1")
    assert MqAdmin(shop.client).topic(shop.topic).length == 30
    confirm(operator, "trim", question)

    assert MqAdmin(shop.client).topic(shop.topic).length == 3
    assert "--keep 1" in command


def test_consumers_that_have_ended_are_forgotten(operator, shop):
    shop.client.execute_command("XGROUP", "CREATECONSUMER", shop.stream, "analytics", "gone")

    question, _ = ask(operator, "prune", name=shop.stream, group="analytics")
    assert "1 consumers have nothing pending" in question
    assert "Forgot 1 consumers" in confirm(operator, "prune", question)


def test_delayed_messages_are_cancelled(operator, shop):
    name = Producer(shop.client).send(shop.topic, {"later": True}, delay_ms=3_600_000)
    listed = operator.get("/delayed", params={"name": shop.topic}).text
    assert name in listed

    question, _ = ask(operator, "cancel-delayed", name=shop.topic, id=name)
    confirm(operator, "cancel-delayed", question)

    assert MqAdmin(shop.client).topic(shop.topic).delayed == 0


def test_tasks_are_retried_purged_and_revoked(operator, shop):
    with app_of(shop) as app:
        (dead,) = app.control.tasks(shop.queue, "dead_lettered").tasks
        question, command = ask(operator, "retry-tasks", queue=shop.queue, id=dead.letter_id)
        assert "1 tasks" in confirm(operator, "retry-tasks", question)
        assert app.control.queue(shop.queue).dead_letters == 0
        assert f"tasks retry {dead.letter_id}" in command

        (queued, *_) = app.control.tasks(shop.queue, "queued").tasks
        question, _ = ask(operator, "revoke", queue=shop.queue, id=queued.id)
        assert "Revoked 1 tasks" in confirm(operator, "revoke", question)
        status = app.results.status(queued.id, shop.queue)
        assert status is not None
        assert status.state == "revoked"


def test_all_dead_letters_of_a_queue_are_retried_or_purged(operator, shop):
    with app_of(shop) as app:
        question, command = ask(operator, "purge-tasks", queue=shop.queue)
        assert "1 dead letters would be deleted for good" in question
        assert "--all" in command
        assert app.control.queue(shop.queue).dead_letters == 1
        question_of_retry, command = ask(operator, "retry-tasks", queue=shop.queue)
        assert "1 tasks would be enqueued again" in question_of_retry
        assert "--all" in command
        confirm(operator, "retry-tasks", question_of_retry)
        assert app.control.queue(shop.queue).dead_letters == 0

        # One that comes after the question is left by it, and deleted by the next one.
        _fail(app, shop.queue, 2)
        assert "Deleted 0 dead letters" in confirm(operator, "purge-tasks", question)
        # The one that was retried has failed again.
        assert app.control.queue(shop.queue).dead_letters == 2
        question, _ = ask(operator, "purge-tasks", queue=shop.queue)
        assert "Deleted 2 dead letters" in confirm(operator, "purge-tasks", question)
        assert app.control.queue(shop.queue).dead_letters == 0


def test_chosen_dead_letters_of_a_queue_are_purged(operator, shop):
    with app_of(shop) as app:
        (chosen,) = app.control.tasks(shop.queue, "dead_lettered").tasks
        _fail(app, shop.queue, 2)
        count = app.control.queue(shop.queue).dead_letters
        question, command = ask(operator, "purge-tasks", queue=shop.queue, id=chosen.letter_id, chosen="1")
        assert "1 dead letters would be deleted for good" in question
        assert f"tasks purge {chosen.letter_id}" in command

        assert "Deleted 1 dead letters" in confirm(operator, "purge-tasks", question)
        left = {one.letter_id for one in app.control.tasks(shop.queue, "dead_lettered").tasks}

    assert (len(left), chosen.letter_id in left) == (count - 1, False)


def _fail(app: TaskApp, queue: str, count: int) -> None:
    """Enqueue one more task that fails, and wait for so many dead letters."""
    app.tasks["shop.send"].enqueue(to="nobody")
    with Worker(app, WorkerConfig(queues=(queue,), pool="thread", concurrency=1)):
        eventually(lambda: app.control.queue(queue).dead_letters == count)


def test_a_worker_process_is_stopped(operator, shop):
    with (
        app_of(shop) as app,
        running("worker", APP, "--queues", "spare", CONQUIET_REDIS_URL=shop.url) as process,
    ):
        (worker,) = eventually(lambda: [one for one in app.control.workers() if one.parent is None])
        question, command = ask(operator, "stop-workers", worker=worker.name)
        assert "1 of 1 are alive" in question
        assert process.poll() is None

        assert "1 of 1 workers have answered, and end" in confirm(operator, "stop-workers", question)
        assert process.wait(60) == 0
        assert app.control.workers() == []
    assert shlex.split(command)[:4] == ["conquiet", "workers", "stop", worker.name]


def test_a_queue_is_paused_and_resumed(operator, shop):
    with app_of(shop) as app:
        for paused, is_paused in (("1", True), ("0", False)):
            question, _ = ask(operator, "pause", queue=shop.queue, paused=paused)
            confirm(operator, "pause", question)
            assert app.control.queue(shop.queue).is_paused is is_paused


def test_a_schedule_runs_now_and_is_disabled_and_enabled(operator, shop):
    with app_of(shop) as app:
        before = app.control.queue(shop.queue).queued
        question, command = ask(operator, "run-schedule", name="nightly")
        confirm(operator, "run-schedule", question)
        assert app.control.queue(shop.queue).queued == before + 1
        assert command.startswith("conquiet schedule run nightly")
        for enabled, is_enabled in (("0", False), ("1", True)):
            question, _ = ask(operator, "enable-schedule", name="nightly", enabled=enabled)
            confirm(operator, "enable-schedule", question)
            assert app.schedules.get("nightly").stored.is_enabled is is_enabled


def test_a_task_whose_queue_is_not_known_is_not_run(shop):
    with serving(shop.url) as page, page.client() as operator:
        question, _ = ask(operator, "run-schedule", name="nightly")

    assert "give --app" in html.unescape(question)
    assert "disabled" in question


def test_what_cannot_be_audited_is_not_done(operator, shop):
    question, _ = ask(operator, "purge", name=shop.topic)
    shop.client.delete("conquiet:audit")
    shop.client.set("conquiet:audit", "not a stream")

    answer = operator.post("/act/purge", data=fields_of(question))

    assert answer.status_code == 503
    assert letters(shop).count() == 3


def test_an_action_is_not_stopped_if_that_cannot_be_audited(operator, shop):
    question, _ = ask(operator, "replay", name=shop.topic, per_second="0.01")
    said = confirm(operator, "replay", question)
    (job,) = re.findall(r'name="job" value="([\d-]+)"', said)
    token = re.findall(r'name="form_token" value="(\w+)"', said)[0]
    shop.client.rename("conquiet:audit", "audit-aside")
    shop.client.set("conquiet:audit", "not a stream")

    refused = operator.post("/stop-job", data={"job": job, "form_token": token})
    shop.client.rename("audit-aside", "conquiet:audit")
    still = operator.get("/letters", params={"name": shop.topic, "done": job}).text

    assert refused.status_code == 503
    assert "Running" in still
    operator.post("/stop-job", data={"job": job, "form_token": token})
    eventually(lambda: AuditLog(shop.client).last(1)[0].outcome == "stopped")


def test_an_action_that_fails_is_in_the_audit_stream_with_its_error(operator, shop):
    question, _ = ask(operator, "run-schedule", name="nightly")
    with app_of(shop) as app:
        app.schedules.delete("nightly")

    said = operator.post("/act/run-schedule", data=fields_of(question)).text
    last = AuditLog(shop.client).last(1)[0]

    assert "There is no such page" not in said
    assert (last.outcome, last.count) == ("failed", 0)
    assert "nightly" in last.detail
    assert "failed" in operator.get("/audit").text


def test_a_job_more_than_may_run_is_refused():
    jobs = Jobs()

    def wait(progress) -> Done:
        progress.wait(600)
        return Done(0, "stopped")

    for number in range(8):
        jobs.start(str(number), "wait", wait, lambda progress, result: None)
    with pytest.raises(TooManyJobsError, match="8 actions run already"):
        jobs.check_room()
    jobs.stop()

    jobs.check_room()
    found = [jobs.find(str(number)) for number in range(8)]
    assert [job.state for job in found if job is not None] == ["stopped"] * 8

"""TaskSender: writes envelopes to their queues, with their records, traces and metrics."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from itertools import islice

from conquiet.queue.connection import execute, queue_error, visible_errors
from conquiet.tasks import clock
from conquiet.tasks.codec import EnvelopeCodec
from conquiet.tasks.connections import AppConnections
from conquiet.tasks.envelope import TaskEnvelope, new_id
from conquiet.tasks.keys import QueueKeys, registry_key
from conquiet.tasks.metrics import count_enqueued
from conquiet.tasks.options import UNFINISHED_TTL_MS, TaskOptions, milliseconds
from conquiet.tasks.plain_form import PlainForm
from conquiet.tasks.scripts import enqueue as scripts
from conquiet.tracing import Where, active_traces

#: Tasks of one round trip.
_BATCH = 1_000

#: A task to send; of its options those that are not in its envelope count.
ToSend = tuple[TaskEnvelope, TaskOptions]


class TaskSender:
    """Enqueues for one app; of each call it returns what Redis has answered."""

    def __init__(self, connections: AppConnections, codec: EnvelopeCodec) -> None:
        self._connections = connections
        self._codec = codec
        self._keys: dict[str, QueueKeys] = {}

    def send(self, envelope: TaskEnvelope, options: TaskOptions) -> scripts.Enqueued:
        """Enqueue one task."""
        traces = active_traces()
        if traces is None:
            return self._send(envelope, options)
        with traces.sending(Where(destination=envelope.queue)) as sending:
            envelope.headers = {**envelope.headers, **sending.headers[0]}
            enqueued = self._send(envelope, options)
            sending.sent([enqueued.id])
        return enqueued

    def send_plain(self, form: PlainForm, args: str) -> str | None:
        """Enqueue one call of a task in its plain form, and return its id; `None`: nothing was done.

        That is so if something else is to be done with it, which `send` does.
        """
        if self._codec.is_sealing or clock.for_scripts() or active_traces() is not None:
            return None
        task_id = new_id()
        data = form.frame.around(task_id, args, clock.now())
        if len(data) > self._codec.max_bytes:
            return None
        keys, client = self._queue_keys(form.queue), self._connections.client
        reply = scripts.enqueue_one(
            client,
            keys,
            task_id,
            data,
            name=form.name,
            priority=form.priority,
            record_ttl_ms=form.record_ttl_ms,
        )
        if reply is not scripts.PlainReply.ENQUEUED:
            if reply is scripts.PlainReply.IS_FIRST:
                # A server that has lost its data does not have the list of queues either.
                self._keys.pop(form.queue, None)
            return None
        count_enqueued(form.name, form.queue, is_new=True)
        return task_id

    def send_many(
        self, tasks: Iterable[ToSend], *, are_new: bool = False
    ) -> list[tuple[TaskEnvelope, scripts.Enqueued]]:
        """Enqueue tasks in order, in one round trip for up to 1,000.

        Args:
            are_new: no other task can have their ids.

        Raises:
            QueueError: the first one that was refused; those before it, and maybe others, are enqueued.
        """
        sent: list[tuple[TaskEnvelope, scripts.Enqueued]] = []
        pending, traces = iter(tasks), active_traces()
        while batch := list(islice(pending, _BATCH)):
            if traces is None:
                sent += self._send_batch(batch, are_new=are_new)
                continue
            with traces.sending_many(Where(destination=batch[0][0].queue), len(batch)) as sending:
                for (envelope, _), headers in zip(batch, sending.headers, strict=True):
                    envelope.headers = {**envelope.headers, **headers}
                enqueued = self._send_batch(batch, are_new=are_new)
                sending.sent([one.id for _, one in enqueued])
            sent += enqueued
        return sent

    def forget_queues(self) -> None:
        """Another server may not know them."""
        self._keys.clear()

    def _send(self, envelope: TaskEnvelope, options: TaskOptions) -> scripts.Enqueued:
        keys, new = self.prepare(envelope, options)
        if new.is_plain:
            scripts.enqueue_new(self._connections.client, keys, new)
            enqueued = scripts.Enqueued(new.id, is_new=True)
        else:
            enqueued = scripts.enqueue(self._connections.client, keys, new)
            if enqueued.leaves_payload:
                self._codec.payloads.remove_unneeded(keys.queue, new.stored_key)
        count_enqueued(envelope.name, keys.queue, is_new=enqueued.is_new)
        return enqueued

    def _send_batch(
        self, batch: Sequence[ToSend], *, are_new: bool
    ) -> list[tuple[TaskEnvelope, scripts.Enqueued]]:
        prepared = [self.prepare(envelope, options) for envelope, options in batch]
        sent, client, (queue, _) = [], self._connections.client, prepared[0]
        replies: Sequence[scripts.Enqueued | Exception]
        if are_new and all(new.is_plain and keys is queue for keys, new in prepared):
            scripts.enqueue_new(client, queue, *(new for _, new in prepared))
            replies = [scripts.Enqueued(new.id, is_new=True) for _, new in prepared]
        else:
            replies = scripts.enqueue_all(client, prepared)
        for (envelope, _), (keys, new), reply in zip(batch, prepared, replies, strict=True):
            if isinstance(reply, Exception):
                raise queue_error("enqueue", reply, stream=keys.prefix, group=None) from reply
            if reply.leaves_payload:
                self._codec.payloads.remove_unneeded(keys.queue, new.stored_key)
            count_enqueued(envelope.name, keys.queue, is_new=reply.is_new)
            sent.append((envelope, reply))
        return sent

    def prepare(self, envelope: TaskEnvelope, options: TaskOptions) -> tuple[QueueKeys, scripts.NewTask]:
        """What is written to enqueue it; its queue is known from then on."""
        new = self.new_task(envelope, options)
        return self._queue_keys(envelope.queue), new

    def new_task(self, envelope: TaskEnvelope, options: TaskOptions) -> scripts.NewTask:
        """As `prepare`; nothing is written, and its queue is not listed."""
        delay_ms = 0
        if envelope.not_before is not None:
            delay_ms = max(0, round((envelope.not_before - clock.now()).total_seconds() * 1000))
        unique_for_ms = milliseconds(options.unique_for_s)
        digest = ""
        if unique_for_ms:
            text = json.dumps([envelope.name, envelope.args], sort_keys=True, separators=(",", ":"))
            digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        encoded = self._codec.encode(envelope)
        return scripts.NewTask(
            id=envelope.id,
            name=envelope.name,
            data=encoded.data,
            stored_key=encoded.stored_key,
            priority=envelope.priority,
            delay_ms=delay_ms,
            record_ttl_ms=0 if options.ignore_result else UNFINISHED_TTL_MS,
            unique_for_ms=unique_for_ms,
            unique_digest=digest,
        )

    def _queue_keys(self, queue: str) -> QueueKeys:
        keys = self._keys.get(queue)
        if keys is None:
            key = registry_key(self._connections.namespace)
            with visible_errors("SADD", stream=key, group=None):
                execute(self._connections.client, "SADD", key, queue)
            keys = self._keys[queue] = QueueKeys(self._connections.namespace, queue)
        return keys

"""The queue and the database together: read, open, handle, commit, ack, in this order."""

from conquiet.consume.batch_handler import BatchHandler, batch_handler
from conquiet.consume.consumer import QueueConsumer
from conquiet.consume.dead_letter import dead_letter_stream
from conquiet.consume.drain import drain, drain_stale
from conquiet.consume.handling import Handler, check_handler
from conquiet.consume.limits import DrainLimits
from conquiet.consume.outcome import Ack, DeadLetter, Retry
from conquiet.consume.references import load_handler, reference_to
from conquiet.consume.relay import OutboxRelay
from conquiet.consume.report import DrainReport
from conquiet.consume.signals import install_signal_handlers

__all__ = [
    "Ack",
    "BatchHandler",
    "DeadLetter",
    "DrainLimits",
    "DrainReport",
    "Handler",
    "OutboxRelay",
    "QueueConsumer",
    "Retry",
    "batch_handler",
    "check_handler",
    "dead_letter_stream",
    "drain",
    "drain_stale",
    "install_signal_handlers",
    "load_handler",
    "reference_to",
]

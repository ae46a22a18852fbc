"""The queue and the database together: read, open, handle, commit, ack, in this order."""

from conquiet.consume.consumer import QueueConsumer
from conquiet.consume.drain import drain, drain_stale
from conquiet.consume.handling import Handler, check_handler
from conquiet.consume.quarantine import quarantine, quarantine_stream
from conquiet.consume.references import load_handler, reference_to
from conquiet.consume.relay import OutboxRelay
from conquiet.consume.report import DrainReport
from conquiet.consume.signals import install_signal_handlers

__all__ = [
    "DrainReport",
    "Handler",
    "OutboxRelay",
    "QueueConsumer",
    "check_handler",
    "drain",
    "drain_stale",
    "install_signal_handlers",
    "load_handler",
    "quarantine",
    "quarantine_stream",
    "reference_to",
]

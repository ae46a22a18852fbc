"""The queue and the database together: read, open, handle, commit, ack, in this order."""

from conquiet.consume.consumer import QueueConsumer
from conquiet.consume.drain import drain, drain_stale
from conquiet.consume.handling import Handler
from conquiet.consume.quarantine import quarantine, quarantine_stream
from conquiet.consume.relay import OutboxRelay
from conquiet.consume.report import DrainReport
from conquiet.consume.signals import install_signal_handlers

__all__ = [
    "DrainReport",
    "Handler",
    "OutboxRelay",
    "QueueConsumer",
    "drain",
    "drain_stale",
    "install_signal_handlers",
    "quarantine",
    "quarantine_stream",
]

"""Sending: producers, partitioners, messages that are sent once or later."""

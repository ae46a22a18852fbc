"""Bytes of the protocol and texts of envelopes as columns, a whole Arrow batch at a time."""

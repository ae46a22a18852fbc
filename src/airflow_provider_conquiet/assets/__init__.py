"""Streams as assets: `redis+stream://host:port/stream`."""

"""Writing rows to streams and topics: what runs in each task, and what ends a write."""

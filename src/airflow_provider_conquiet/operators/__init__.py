"""Tasks over streams: enqueue, drain, recover, replay, trim, prune."""

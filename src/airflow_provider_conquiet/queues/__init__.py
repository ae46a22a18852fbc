"""Redis Streams for `MessageQueueTrigger`."""

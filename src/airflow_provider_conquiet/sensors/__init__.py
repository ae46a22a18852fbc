"""What waits for messages."""

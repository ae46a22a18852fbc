"""Dead letters: messages that are not tried again until they are replayed."""

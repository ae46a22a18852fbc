"""Dead letters: messages that will not be tried again by themselves, and their replay."""

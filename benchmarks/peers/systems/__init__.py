"""One module for each system, set up as its own documentation says; run in the environment of the peers."""

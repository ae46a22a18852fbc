"""The command `conquiet`: arguments to calls, no logic."""

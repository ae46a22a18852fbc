"""The commands, each in a module that is named as it is typed."""

"""The command line tool in this process, as in tests/cli."""

from tests.cli.conftest import anywhere, own_place

__all__ = ["anywhere", "own_place"]

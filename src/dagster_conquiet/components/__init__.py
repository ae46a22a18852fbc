"""Components for YAML definitions; `dg list components` finds this module by its entry point."""

from dagster_conquiet.components.stream_drain import StreamDrainComponent

__all__ = ["StreamDrainComponent"]

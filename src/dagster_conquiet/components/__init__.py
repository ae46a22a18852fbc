"""Components for YAML definitions; `dg list components` shows those that `dagster_conquiet` exports."""

from dagster_conquiet.components.connection import ConnectionComponent
from dagster_conquiet.components.stream_drain import StreamDrainComponent
from dagster_conquiet.components.topic_drain import TopicDrainComponent

__all__ = ["ConnectionComponent", "StreamDrainComponent", "TopicDrainComponent"]

"""The partitions of a topic as those of an asset."""

from __future__ import annotations

import dagster as dg

from dagster_conquiet.asset_keys import plain_name


def topic_partitions(partitions: int) -> dg.StaticPartitionsDefinition:
    """The keys "0" to one less than the number of the topic's partitions.

    Examples:
        >>> topic_partitions(3).get_partition_keys()
        ['0', '1', '2']
    """
    return dg.StaticPartitionsDefinition([str(number) for number in range(partitions)])


def dynamic_topic_partitions(topic: str) -> dg.DynamicPartitionsDefinition:
    """The partitions that the topic has: its sensor and its observations add those that it gets."""
    return dg.DynamicPartitionsDefinition(name=f"conquiet_{plain_name(topic)}")


def partitions_of(topic: str, partitions: int | None) -> dg.PartitionsDefinition[str]:
    """So many, or those that the topic has when it is observed."""
    return dynamic_topic_partitions(topic) if partitions is None else topic_partitions(partitions)

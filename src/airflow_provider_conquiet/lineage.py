"""Lineage: a task's streams with their row counts, as OpenLineage has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_conquiet.assets.redis_stream import openlineage_name

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What a task has read and written, by asset URI, with how many messages."""

    inputs: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=dict)

    def facets(self) -> OperatorLineage[Any, Any]:
        """For the OpenLineage provider, which is installed if this is called."""
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.event_v2 import InputDataset, OutputDataset
        from openlineage.client.facet_v2 import (
            input_statistics_input_dataset,
            output_statistics_output_dataset,
        )

        read = input_statistics_input_dataset.InputStatisticsInputDatasetFacet
        written = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
        inputs = [
            InputDataset(*openlineage_name(uri), inputFacets={"inputStatistics": read(rowCount=count)})
            for uri, count in self.inputs.items()
        ]
        outputs = [
            OutputDataset(*openlineage_name(uri), outputFacets={"outputStatistics": written(rowCount=count)})
            for uri, count in self.outputs.items()
        ]
        return OperatorLineage(inputs=inputs, outputs=outputs)

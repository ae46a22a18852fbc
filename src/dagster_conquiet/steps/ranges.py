"""Several partitions of a topic in one step, as in a backfill of a single run: one failing stops no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from conquiet.mq import PartitionBusyError
from dagster_conquiet.specs import TopicDrainSpec
from dagster_conquiet.steps.attempts import Context
from dagster_conquiet.steps.drain import PartitionMissingError, drain_in_step
from dagster_conquiet.steps.failures import OutageFailure
from dagster_conquiet.steps.metadata import Metadata

Failed = dg.Failure | PartitionBusyError | PartitionMissingError


def drain_in_turn(
    context: Context, spec: TopicDrainSpec, config: Any, keys: Sequence[str]
) -> tuple[dict[str, Metadata], dict[str, Failed]]:
    """Drain one after the other; the metadata of those that ended well, and why the others did not.

    Behind one in which a server was unavailable none is begun.
    """
    drained: dict[str, Metadata] = {}
    failed: dict[str, Failed] = {}
    for key in keys:
        try:
            _, drained[key] = drain_in_step(context, spec, config, int(key))
        except (dg.Failure, PartitionBusyError, PartitionMissingError) as error:
            context.log.warning("partition %s of %r: %s", key, spec.topic, _sentence_of(error))
            failed[key] = error
            if isinstance(error, OutageFailure):
                # The other partitions have the same servers; the step's retry drains them.
                break
    return drained, failed


def failure_of(failed: Mapping[str, Failed]) -> dg.Failure:
    """One failure for all of them; its metadata has the reason and the counts of each."""
    reasons = [
        dg.TableRecord({"partition": key, "reason": _sentence_of(error), **_counts_of(error)})
        for key, error in failed.items()
    ]
    schema = dg.TableSchema(
        [dg.TableColumn("partition"), dg.TableColumn("reason")]
        + [dg.TableColumn(name, type="int") for name in _COUNTS]
    )
    first = _sentence_of(next(iter(failed.values())))
    return dg.Failure(
        f"partitions {', '.join(failed)} failed; the first one: {first}",
        metadata={"failed_partitions": dg.MetadataValue.table(reasons, schema=schema)},
        allow_retries=any(getattr(error, "allow_retries", True) for error in failed.values()),
    )


_COUNTS = ("read", "handled", "failed", "retried", "dead_lettered")


def _counts_of(error: Failed) -> dict[str, int]:
    metadata = error.metadata if isinstance(error, dg.Failure) else {}
    return {name: int(metadata[name].value) if name in metadata else 0 for name in _COUNTS}  # type: ignore[arg-type]


def _sentence_of(error: Failed) -> str:
    return str((error.description if isinstance(error, dg.Failure) else None) or error)

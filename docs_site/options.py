"""`python -m docs_site.options` writes docs/options.md: every option, from the code that reads it."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

from docs_site.comments import comment_above

PAGE = Path(__file__).parents[1] / "docs" / "options.md"

#: Sections of the page, with the classes whose options they show.
SECTIONS = {
    "Streams and drains": (
        "conquiet.queue.config:QueueConfig",
        "conquiet.consume.limits:DrainLimits",
        "conquiet.db.inbox:Inbox",
        "conquiet.embedded.server:EmbeddedServer",
    ),
    "Topics": (
        "conquiet.mq.own.consumer_config:ConsumerConfig",
        "conquiet.mq.own.retry_policy:RetryPolicy",
        "conquiet.mq.policies:TopicPolicies",
        "conquiet.mq.policies:DeadLetterPolicy",
    ),
    "Tasks": (
        "conquiet.tasks.app:TaskApp",
        "conquiet.tasks.options:TaskOptions",
        "conquiet.tasks.worker:WorkerConfig",
        "conquiet.tasks.beat:BeatConfig",
    ),
    "Spark": ("conquiet.spark.options:ReadOptions", "conquiet.spark.options:WriteOptions"),
    "Airflow": (
        "airflow_provider_conquiet.operators.drain:DrainOperator",
        "airflow_provider_conquiet.operators.claim_stale:ClaimStaleOperator",
        "airflow_provider_conquiet.operators.enqueue:EnqueueOperator",
        "airflow_provider_conquiet.operators.take:TakeOperator",
        "airflow_provider_conquiet.operators.task:TaskOperator",
        "airflow_provider_conquiet.operators.dead_letters:ReplayDeadLettersOperator",
        "airflow_provider_conquiet.operators.trim:TrimOperator",
        "airflow_provider_conquiet.operators.consumers:PruneConsumersOperator",
        "airflow_provider_conquiet.operators.spark:SparkPublishOperator",
        "airflow_provider_conquiet.sensors.ack_by_run:AckByRunSensor",
        "airflow_provider_conquiet.sensors.backlog:BacklogSensor",
        "airflow_provider_conquiet.sensors.drain:DrainSensor",
        "airflow_provider_conquiet.sensors.message:MessageSensor",
        "airflow_provider_conquiet.triggers.backlog:BacklogTrigger",
        "airflow_provider_conquiet.triggers.match:MatchTrigger",
        "airflow_provider_conquiet.triggers.message:MessageTrigger",
        "airflow_provider_conquiet.triggers.run:RunTrigger",
        "airflow_provider_conquiet.triggers.task:TaskTrigger",
    ),
    "Dagster": (
        "dagster_conquiet.specs:DrainSpec",
        "dagster_conquiet.specs:TopicDrainSpec",
        "dagster_conquiet.task_spec:TaskSpec",
        "dagster_conquiet.config:DrainConfig",
        "dagster_conquiet.config:TopicDrainConfig",
        "dagster_conquiet.config:ClaimStaleConfig",
        "dagster_conquiet.config:ReplayConfig",
        "dagster_conquiet.config:FailWhen",
        "dagster_conquiet.resources:RedisStreamsResource",
        "dagster_conquiet.resources:DatabaseResource",
    ),
}
_ABOVE = {
    "DrainOperator": "Also of `@task.drain`, whose function is the `handler`.",
    "EnqueueOperator": "Also of `@task.enqueue`, whose function gives the payloads.",
    "TaskOperator": "Also of `@task.conquiet_task`, whose function gives the `args`.",
    "DrainLimits": "`None` is no limit. The same here, in Airflow, in Dagster and on the command line.",
    "TaskOptions": "Of `@app.task(...)`, and of `with_options(...)` for single calls.",
    "ReadOptions": (
        "Of `spark.read` and `spark.readStream`; besides `url`, and one of `stream`, `topic`, `streams`, "
        "`topics`, `streamPattern` and `topicPattern`."
    ),
    "WriteOptions": (
        "Of `df.write` and `df.writeStream`; besides `url`, and `stream` or `topic`, or neither of "
        "them with a column `topic`."
    ),
}
#: Arguments that mean the same in every class of Airflow.
_IN_AIRFLOW = {
    "stream": "the key of the stream",
    "topic": "the name of a topic, instead of `stream`",
    "group": "the consumer group",
    "redis_streams_conn_id": "a connection of type `redis_streams`, `redis` or `rediss`",
    "poll_interval_s": "how often it polls",
    "conn_id": "the connection of Airflow's Spark provider",
    "deploy_mode": "as of `SparkSubmitOperator`",
    "conquiet_task_id": "the id of the conquiet task that is waited for",
    "task_queue": "the queue of that task",
    "namespace": "that of its `TaskApp`",
    "poke_interval": "as of Airflow's sensors: the seconds between two looks",
    "mode": "as of Airflow's sensors",
    "after": "of each stream, the entry id after which it reads",
    "is_topic": "whether the streams are the partitions of a topic",
    "match": "`package.module:function`, from payload to bool",
    "equals": "instead of `match`, payload fields and the values that they must have",
    "state": "what the run has taken, as `AckByRunSensor` gives it",
    "messages": "the ids of what the run has taken",
}
_HEAD = """# Options

Every option with its default, as the code has them; `python -m docs_site.options` writes this page.

```python
from conquiet import DrainLimits

limits = DrainLimits(max_messages=500, max_deliveries=5)
assert limits.idle_ms == 1_000  # the default
```
"""


@dataclass(frozen=True, slots=True)
class Option:
    """One row of a table."""

    name: str
    default: str
    text: str


def main() -> None:
    PAGE.write_text(page())


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for section, references in SECTIONS.items():
        parts.append(f"\n## {section}\n")
        for reference in references:
            kind = load(reference)
            above = f"{_ABOVE[kind.__name__]}\n\n" if kind.__name__ in _ABOVE else ""
            parts.append(f"\n### {kind.__name__}\n\n{above}{table_of(kind)}")
    return "".join(parts)


def load(reference: str) -> type[Any]:
    """The class that "module:Class" names."""
    module, _, name = reference.partition(":")
    kind: type[Any] = getattr(import_module(module), name)
    return kind


def table_of(kind: type[Any]) -> str:
    """The options of a class as a table."""
    rows = [f"| `{one.name}` | {one.default} | {_cell(one.text)} |" for one in options_of(kind)]
    return "\n".join(["| option | default | |", "| --- | --- | --- |", *rows, ""])


def _cell(text: str) -> str:
    # Comments begin with a capital, entries of docstrings with a small letter.
    return (text[:1].upper() + text[1:]).rstrip(".").replace("|", "&#124;")


def options_of(kind: type[Any]) -> list[Option]:
    """All options of a config, of an operator, or of whatever else is made with keywords."""
    if hasattr(kind, "model_fields"):
        return list(_of_model(kind))
    # Operators inherit from a dataclass of Airflow and are none.
    if "__dataclass_params__" in vars(kind):
        return list(_of_dataclass(kind))
    return list(_of_constructors(kind))


def _of_model(kind: Any) -> Iterator[Option]:
    for name, field in kind.model_fields.items():
        default = "" if field.is_required() else shown(field.get_default(call_default_factory=True))
        yield Option(name, default, field.description or "")


def _of_dataclass(kind: type[Any]) -> Iterator[Option]:
    texts = _comments_of(kind)
    is_of_spark = kind.__module__ == "conquiet.spark.options"
    for field in fields(kind):
        if field.name == "address" or not field.init:
            continue
        name = re.sub("_(.)", lambda letter: letter[1].upper(), field.name) if is_of_spark else field.name
        if field.default is not MISSING:
            default = shown(field.default)
        elif field.default_factory is not MISSING:
            made_by = str(getattr(field.default_factory, "__name__", "computed"))
            default = "computed" if made_by == "<lambda>" else f"`{made_by}()`"
        else:
            default = ""
        yield Option(name, default, texts.get(field.name, ""))


def _of_constructors(kind: type[Any]) -> Iterator[Option]:
    texts = dict(_IN_AIRFLOW) if kind.__module__.startswith("airflow") else {}
    seen: set[str] = set()
    classes = [one for one in kind.__mro__ if _is_ours(one)]
    for one in reversed(classes):
        texts |= _arguments_in(one.__doc__ or "")
    for one in classes:
        for parameter in _parameters(one):
            if parameter.name not in seen:
                seen.add(parameter.name)
                default = "" if parameter.default is parameter.empty else shown(parameter.default)
                yield Option(parameter.name, default, texts.get(parameter.name, ""))


def _parameters(kind: type[Any]) -> Iterator[inspect.Parameter]:
    if "__init__" not in vars(kind):
        return
    for parameter in list(inspect.signature(vars(kind)["__init__"]).parameters.values())[1:]:
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            yield parameter
        elif "ThresholdArguments" in str(parameter.annotation):
            thresholds = import_module("airflow_provider_conquiet.triggers.thresholds").Thresholds
            for field in fields(thresholds):
                yield inspect.Parameter(field.name, parameter.KEYWORD_ONLY, default=field.default)


def _is_ours(kind: type[Any]) -> bool:
    return kind.__module__.split(".")[0] in ("conquiet", "airflow_provider_conquiet", "dagster_conquiet")


def _comments_of(kind: type[Any]) -> dict[str, str]:
    """The `#:` comments above the fields of a class and of those that it inherits from."""
    texts: dict[str, str] = {}
    for one in reversed([parent for parent in kind.__mro__ if _is_ours(parent)]):
        source = textwrap.dedent(inspect.getsource(one))
        lines = source.splitlines()
        (tree,) = ast.parse(source).body
        assert isinstance(tree, ast.ClassDef)
        for node in tree.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                texts[node.target.id] = comment_above(lines, node.lineno)
    return texts


def _arguments_in(docstring: str) -> dict[str, str]:
    """The entries below "Args:"; one entry may be of several arguments."""
    _, _, below = inspect.cleandoc(docstring).partition("Args:\n")
    texts: dict[str, str] = {}
    for entry in re.split(r"\n(?= {4}\S)", "\n" + re.split(r"\n(?=\S)", below, maxsplit=1)[0]):
        names, _, text = entry.strip().partition(": ")
        for name in names.split(", "):
            texts[name] = " ".join(text.split())
    return texts


def shown(value: Any) -> str:
    """A default as it would be written."""
    if isinstance(value, Enum):
        return f"`{value.name}`"
    if isinstance(value, type):
        return f"`{value.__name__}`"
    if isinstance(value, tuple) and value and isinstance(value[0], type):
        return "`(" + ", ".join(one.__name__ for one in value) + ",)`"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if hasattr(value, "model_fields_set"):
        return f"`{type(value).__name__}()`"
    text = repr(value)
    return f"`{type(value).__name__}()`" if " object at 0x" in text or len(text) > 60 else f"`{text}`"


if __name__ == "__main__":
    main()

"""Started by hand: replay dead letters of a topic or a plain stream; the first run only counts.

Needs the connection `redis_streams_default`.
"""

from airflow.sdk import Param, dag

from airflow_provider_conquiet.operators.dead_letters import ReplayDeadLettersOperator


@dag(
    schedule=None,
    params={
        "topic": Param("orders", type="string", description="or the name of a plain stream"),
        "group": Param(None, type=["null", "string"], description="only what this group gave up"),
        "error_type": Param(None, type=["null", "string"], description="only this exception, as NoStock"),
        "limit": Param(1_000, type="integer", minimum=1),
        "per_second": Param(
            100, type="number", exclusiveMinimum=0, description="replays in a second, at the most"
        ),
        "is_dry_run": Param(True, type="boolean", description="only count"),
    },
    # Params keep their types: None stays None.
    render_template_as_native_obj=True,
    tags=["conquiet"],
)
def replay_dead_letters():
    ReplayDeadLettersOperator(
        task_id="replay",
        topic="{{ params.topic }}",
        group="{{ params.group }}",
        error_type="{{ params.error_type }}",
        limit="{{ params.limit }}",
        per_second="{{ params.per_second }}",
        is_dry_run="{{ params.is_dry_run }}",
    )


replay_dead_letters()

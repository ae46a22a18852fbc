"""A client of Spark Connect that has nothing of conquiet: `thin_client.py [--strict] REMOTE ARGUMENTS`.

It runs in a virtual environment with pyspark-client alone; --strict refuses what that does not have.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

_REFUSED = {"conquiet", "redis", "sqlalchemy", "py4j", "hiredis", "pyspark_redis_stream"}


class _Refusal(MetaPathFinder):
    """Nothing of these can be imported."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        # By pyspark.core the package knows whether it is pyspark-client.
        if name == "pyspark.core" or name.partition(".")[0] in _REFUSED:
            raise ModuleNotFoundError(f"a thin client has no {name}", name=name)


def main(remote: str, redis_url: str, stream: str, database_url: str, folder: str) -> None:
    """Write, read, copy by a query, drain by a query into a database; prints what was read."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(remote).getOrCreate()
    # The server has conquiet, and not the client's own code.
    spark.addArtifacts(str(Path(__file__).with_name("number_sink.py")), pyfile=True)

    def source(reader: Any, name: str) -> Any:
        return reader.format("redis-stream").options(url=redis_url, stream=name).load()

    rows = spark.range(0, 500, 1, 2).selectExpr("to_json(named_struct('number', id)) AS data")
    rows.write.format("redis-stream").mode("append").options(url=redis_url, stream=stream).save()
    count = source(spark.read, stream).count()
    copy = source(spark.readStream.option("start", "earliest"), stream).select("data").writeStream
    copy = copy.format("redis-stream").options(url=redis_url, stream=f"{stream}-copy")
    copy.option("checkpointLocation", f"{folder}/copy").trigger(availableNow=True).start().awaitTermination()

    def drain(df: Any, batch_id: int) -> None:
        # Imported where it runs: on the server.
        from conquiet.spark import drain_batch

        call = drain_batch("number_sink:keep_numbers", database_url, name="numbers")
        call(df, batch_id)
        # As if the server had died before it could note the batch as done.
        marker = Path(folder) / "failed"
        if not marker.exists():
            marker.touch()
            raise RuntimeError("as if the server had died")

    last = None
    for _ in range(2):
        query = source(spark.readStream.option("start", "earliest"), stream).writeStream.queryName("numbers")
        query = query.foreachBatch(drain).option("checkpointLocation", f"{folder}/drain")
        started = query.trigger(availableNow=True).start()
        try:
            started.awaitTermination()
        except Exception as error:
            last = str(error)
    print(json.dumps({"read": count, "error": last, "modules": sorted(_REFUSED & sys.modules.keys())}))
    spark.stop()


if __name__ == "__main__":
    if "--strict" in sys.argv:
        sys.argv.remove("--strict")
        sys.meta_path.insert(0, _Refusal())
    main(*sys.argv[1:])

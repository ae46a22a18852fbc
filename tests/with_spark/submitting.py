"""What a spark-submit of a test needs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}
_LOG = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c: %m%n
"""


def submit_environment(folder: Path) -> dict[str, str]:
    """Settings as properties of Java: with a folder in its class path no class archive fits."""
    log = folder / "log4j2.properties"
    log.write_text(_LOG)
    properties = _SETTINGS | {"log4j2.configurationFile": log.as_uri()}
    options = [os.environ["JDK_JAVA_OPTIONS"], *(f"-D{name}={value}" for name, value in properties.items())]
    return {
        "JDK_JAVA_OPTIONS": " ".join(options),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def spark_submit() -> str:
    """The one of the tests' Spark."""
    return str(Path(sys.executable).with_name("spark-submit"))

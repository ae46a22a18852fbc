"""What a short spark-submit on one machine needs in its environment: this Python, loopback, a quiet log."""

from __future__ import annotations

import sys
from pathlib import Path

#: Short programs: what the JVM would gain by compiling well costs more than all of their work.
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_DEFAULTS = f"""
spark.ui.enabled false
spark.driver.bindAddress 127.0.0.1
spark.driver.host 127.0.0.1
spark.sql.shuffle.partitions 2
spark.driver.extraJavaOptions {_QUICK}
spark.executor.extraJavaOptions {_QUICK}
"""
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
    """Write Spark's settings into the folder; returns the variables by which Spark finds them."""
    (folder / "spark-defaults.conf").write_text(_DEFAULTS)
    (folder / "log4j2.properties").write_text(_LOG)
    return {
        "SPARK_CONF_DIR": str(folder),
        "SPARK_DAEMON_JAVA_OPTS": _QUICK,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }

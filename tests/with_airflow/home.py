"""A private Airflow for this process: its home and its database, chosen before Airflow is imported."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

HOME = Path(tempfile.mkdtemp(prefix="conquiet-airflow-"))
#: Empty: `dag.test()` reads the whole folder at every call.
DAGS_FOLDER = HOME / "dags"


def choose() -> None:
    """Set the environment that Airflow reads when it is imported; every test process has its own home."""
    if os.environ.get("AIRFLOW_HOME") == str(HOME):
        return
    DAGS_FOLDER.mkdir()
    os.environ |= {
        "AIRFLOW_HOME": str(HOME),
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS_FOLDER),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME}/airflow.db",
    }
    atexit.register(shutil.rmtree, HOME, ignore_errors=True)

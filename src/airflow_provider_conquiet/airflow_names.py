"""Names that Airflow's versions keep in different modules; the provider imports them from here.

Airflow's `common.compat` has them too, but not in the version that the constraints of Airflow 3.1.0 name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk.execution_time.context import OutletEventAccessor
from airflow.sdk.log import mask_secret

if TYPE_CHECKING:
    from airflow.sdk.bases.decorator import determine_kwargs
    from airflow.sdk.configuration import conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
    )
    from airflow.sdk.lineage import get_hook_lineage_collector
else:
    try:
        from airflow.sdk.bases.decorator import determine_kwargs
        from airflow.sdk.configuration import conf
        from airflow.sdk.exceptions import (
            AirflowException,
            AirflowFailException,
            AirflowNotFoundException,
            AirflowSkipException,
        )
        from airflow.sdk.lineage import get_hook_lineage_collector
    except ImportError:  # Airflow 3.1
        from airflow.configuration import conf
        from airflow.exceptions import (
            AirflowException,
            AirflowFailException,
            AirflowNotFoundException,
            AirflowSkipException,
        )
        from airflow.lineage.hook import get_hook_lineage_collector
        from airflow.utils.operator_helpers import determine_kwargs

#: Whether assets have partitions: from Airflow 3.3 on.
HAS_ASSET_PARTITIONS = hasattr(OutletEventAccessor, "add_partitions")

__all__ = [
    "HAS_ASSET_PARTITIONS",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSkipException",
    "conf",
    "determine_kwargs",
    "get_hook_lineage_collector",
    "mask_secret",
]

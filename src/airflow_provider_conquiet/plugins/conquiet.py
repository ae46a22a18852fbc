"""ConquietPlugin: the provider's entry in Airflow's list of plugins."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class ConquietPlugin(AirflowPlugin):
    """Shows that the provider is loaded, and adds nothing to a process that does not use it.

    Triggers, queues and assets are registered by `get_provider_info`. There is no web page: Airflow serves
    the pages of plugins without a login.
    """

    name = "conquiet"

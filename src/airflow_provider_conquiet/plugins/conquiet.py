"""ConquietPlugin: the provider's entry in Airflow's list of plugins, with the page."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_provider_conquiet.get_provider_info import missing_requirements
from airflow_provider_conquiet.plugins.page import URL_PREFIX, AirflowPage, is_page_enabled, menu_address

# Beside an older Airflow there is no page, as there is no operator.
_HAS_PAGE = is_page_enabled() and not missing_requirements()


class ConquietPlugin(AirflowPlugin):
    """Serves the page in the api-server; adds nothing to a process that does not use it.

    Triggers, queues and assets are registered by `get_provider_info`. Airflow serves the pages of plugins
    without a login: the page asks for Airflow's own.
    """

    name = "conquiet"
    fastapi_apps: list[Any] = (
        [{"app": AirflowPage(), "url_prefix": URL_PREFIX, "name": "conquiet"}] if _HAS_PAGE else []
    )
    external_views: list[Any] = (
        [
            {
                "name": "Queues",
                "href": menu_address(),
                "destination": "nav",
                "category": "browse",
                "url_route": "conquiet",
            }
        ]
        if _HAS_PAGE
        else []
    )

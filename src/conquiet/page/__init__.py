"""The web page: queues, messages, dead letters, tasks and schedules, to look at and to act on."""

from conquiet.extras import needs_extra

with needs_extra("page", "jinja2", "starlette", "uvicorn", part="the page"):
    from conquiet.page.application import build_page
    from conquiet.page.identity import Gate, Role, User
    from conquiet.page.settings import PageSettings
    from conquiet.page.site import Site

__all__ = ["Gate", "PageSettings", "Role", "Site", "User", "build_page"]

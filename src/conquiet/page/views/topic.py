"""One topic or plain stream: groups, partitions, owners, leases, lag over time, retention, findings."""

from __future__ import annotations

from typing import Any

from conquiet.mq import MqAdmin, Topics
from conquiet.operations import diagnose, topic_facts
from conquiet.page.charts import chart_of
from conquiet.page.history import lag_over_time
from conquiet.page.query import Query
from conquiet.page.site import Site
from conquiet.page.view import View

#: Partitions of one group that are shown.
_MOST_PARTITIONS = 128


def read(site: Site, query: Query) -> dict[str, Any]:
    """Everything about one subject; the work is that of its partitions and groups."""
    name = query.needed("name")
    topic = Topics(site.client).open_existing(name)
    subject = site.subject(name, "stream" if topic.layout == "bare_stream" else "topic")
    site.sampler.look_at(subject)
    admin, facts = MqAdmin(site.client), topic_facts(site.client, name)
    owners = {group.name: admin.owners(topic, group.name) for group in facts.groups}
    figures = site.sampler.figures(subject)
    history = lag_over_time(site, name)
    return {
        "name": name,
        "topic": topic,
        "subject": subject,
        "stats": admin.topic(topic),
        "facts": facts,
        "groups": admin.groups(topic),
        "owners": owners,
        "rates": {} if figures is None else figures.rates(),
        "findings": [one for one in diagnose([], [facts]) if one.level != "ok"],
        "chart": chart_of(history.series, title=f"Backlog of {name}"),
        "history": history,
        "most_partitions": _MOST_PARTITIONS,
    }


VIEW = View("/topic", "topic.html", read)

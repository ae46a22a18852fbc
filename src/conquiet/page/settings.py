"""PageSettings: what a page shows, to whom, and what it hides."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSettings:
    """The settings of one page.

    Examples:
        >>> settings = PageSettings(secret="of your configuration", masked_fields=frozenset({"card"}))
        >>> settings.refresh_s
        2.0
    """

    #: Plain streams that are shown beside the topics of the registry.
    streams: tuple[str, ...] = ()
    #: Whether plain streams are looked for, with SCAN, a few keys at a time.
    finds_streams: bool = True
    #: Whether figures are read in the background, for rates and charts, and kept in Redis.
    takes_samples: bool = True
    #: What the keys of queues of tasks begin with.
    namespace: str = "tasks"
    #: What `--app` was given; commands that are shown have it, too.
    app: str | None = None
    #: Names of payload fields, of headers and of arguments whose values are not shown.
    masked_fields: frozenset[str] = frozenset()
    #: Where a trace is shown: a URL with `{trace_id}` in it.
    trace_url: str | None = None
    #: A Prometheus with the figures of `conquiet metrics serve`; else charts are of the samples in Redis.
    prometheus_url: str | None = None
    #: Whether nobody may change anything, operators neither.
    is_read_only: bool = False
    #: Which pages may show this one in a frame: 'none', or 'self' behind the login of another program.
    frame_ancestors: str = "'none'"
    #: Signs cookies and form tokens; the processes of one page share it.
    secret: str = field(repr=False)
    #: Seconds between two updates of an open page.
    refresh_s: float = 2.0
    #: An event stream is ended after so long, and opened again by the browser, which is let in anew.
    stream_s: float = 300.0
    #: Pages that are open at once and updated live; others are read again by hand.
    most_live: int = 100

    def __post_init__(self) -> None:
        if len(self.secret) < 16:
            raise ValueError("the secret of a page must have 16 characters or more")
        if self.refresh_s <= 0:
            raise ValueError(f"refresh_s must be above 0, got {self.refresh_s!r}")
        if self.trace_url is not None and "{trace_id}" not in self.trace_url:
            raise ValueError("trace_url must have {trace_id} in it")
        for url in (self.trace_url, self.prometheus_url):
            if url is not None and not url.startswith(("http://", "https://")):
                raise ValueError(f"a URL begins with http:// or https://, got {url!r}")

"""Streams as assets: the URI's form, a factory, and the name that OpenLineage uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from airflow.sdk import Asset

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset

SCHEME = "redis+stream"
_DEFAULT_PORT = 6379


def stream_uri(address: str, stream: str) -> str:
    """The URI of a stream on a server, `redis+stream://host:port/stream`."""
    return f"{SCHEME}://{address}/{quote(stream, safe=':')}"


def create_asset(
    *, stream: str, host: str, port: int = _DEFAULT_PORT, extra: dict[str, Any] | None = None
) -> Asset:
    """The asset of a stream; a DAG names it without asking any server."""
    return Asset(uri=stream_uri(f"{host}:{port}", stream), extra=extra or {})


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """One form for one stream: lower-case host, a port always, no credentials.

    Raises:
        ValueError: host or stream is missing, or there is more in the path than the stream.
    """
    stream = uri.path.removeprefix("/")
    if not uri.hostname or not stream:
        raise ValueError(f"a stream's URI is {SCHEME}://host:port/stream, got {uri.geturl()!r}")
    if "/" in stream:
        raise ValueError(f"a slash in a stream's name is written %2F, got {uri.geturl()!r}")
    host = f"[{uri.hostname}]" if ":" in uri.hostname else uri.hostname
    return SplitResult(SCHEME, f"{host}:{uri.port or _DEFAULT_PORT}", f"/{stream}", "", "")


def openlineage_name(uri: str) -> tuple[str, str]:
    """Namespace and name of a stream's data set: its server and its key."""
    parts = urlsplit(uri)
    return f"redis://{parts.netloc}", unquote(parts.path.removeprefix("/"))


def convert_asset_to_openlineage(asset: Asset, lineage_context: object) -> Dataset:
    """The data set of a stream, for the OpenLineage provider where it is installed."""
    from airflow.providers.common.compat.openlineage.facet import Dataset

    namespace, name = openlineage_name(asset.uri)
    return Dataset(namespace=namespace, name=name)

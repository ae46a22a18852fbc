"""stream_asset_key: readable keys, and never two streams under one."""

from __future__ import annotations

import re

import dagster as dg
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dagster_conquiet import stream_asset_key

PART = re.compile(r"[A-Za-z0-9_]+")
CODE = re.compile(r"_x([0-9a-f]*)_")


def stream_of(key: dg.AssetKey) -> str:
    """The inverse: if there is one, no two streams can have the same key."""
    return ":".join(CODE.sub(_character, part) for part in key.path[1:])


def _character(code: re.Match[str]) -> str:
    return chr(int(code[1], 16)) if code[1] else ""


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from(":{}_x7b-")), min_size=1))
@example("_x7b_")
@example("{")
@example("a::b")
@example(":")
@example("__x_x")
@example("_x")
def test_the_stream_can_be_read_from_its_key_so_no_two_streams_share_one(stream):
    key = stream_asset_key(stream)

    assert all(PART.fullmatch(part) for part in key.path)
    assert stream_of(key) == stream


def test_usual_names_stay_readable():
    assert stream_asset_key("orders").path == ["streams", "orders"]
    assert stream_asset_key("orders:eu").path == ["streams", "orders", "eu"]
    assert stream_asset_key("new_orders").path == ["streams", "new_orders"]
    assert stream_asset_key("stream:topic:{orders:p:0}").path[2:] == ["topic", "_x7b_orders", "p", "0_x7d_"]


def test_a_key_can_be_a_dependency_of_an_asset():
    @dg.asset(deps=[stream_asset_key("a{b}::c-d")])
    def made() -> None: ...

    assert dg.Definitions(assets=[made]).resolve_asset_graph().get(made.key).parent_keys


@pytest.mark.parametrize("stream", ["", None, 7])
def test_what_is_no_name_is_refused(stream):
    with pytest.raises(ValueError, match="stream must be a name"):
        stream_asset_key(stream)

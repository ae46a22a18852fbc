"""stream_asset_key: readable keys, and never two streams under one."""

from __future__ import annotations

import re

import dagster as dg
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dagster_conquiet import DrainSpec, stream_asset_key

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


def decoded(name: str) -> list[list[str]]:
    """The parts of words, each of one stream or group, that were joined by "__"; the inverse again."""
    parts, rest = [""], name
    while rest:
        if code := CODE.match(rest):
            parts[-1], rest = parts[-1] + _character(code), rest[code.end() :]
        elif rest.startswith("__"):
            parts, rest = [*parts, ""], rest[2:]
        else:
            parts[-1], rest = parts[-1] + rest[0], rest[1:]
    return [parts[:-1], parts[-1:]]


NAMES = st.text(alphabet=st.one_of(st.characters(), st.sampled_from(":{}_x7b-")), min_size=1)


@given(NAMES, NAMES)
@example("orders__eu", "billing")
@example("orders:eu", "billing")
@example("orders", "eu:billing")
@example("a_", "_b")
@example("a_-", "x2d_")
def test_stream_and_group_can_be_read_from_the_name_of_a_spec_so_no_two_specs_share_one(stream, group):
    name = DrainSpec(stream=stream, group=group).name

    assert PART.fullmatch(name)
    assert decoded(name) == [stream.split(":"), [group]]


def test_usual_names_stay_readable():
    assert DrainSpec(stream="shop:new_orders", group="billing_1").name == "shop__new_orders__billing_1"
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

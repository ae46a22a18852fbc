"""Handlers by name."""

from __future__ import annotations

import json

import pytest

from conquiet import load_handler, reference_to


def bill(msg, session):
    """A handler."""


class Billing:
    @staticmethod
    def bill(msg, session):
        """A handler within a class."""


@pytest.mark.parametrize("handler", [bill, Billing.bill, json.dumps])
def test_a_function_is_found_by_its_reference(handler):
    assert load_handler(reference_to(handler)) is handler


@pytest.mark.parametrize("handler", [lambda msg, session: None, print])
def test_what_no_name_finds_has_no_reference(handler):
    local = handler if handler is not print else _nested()
    with pytest.raises(ValueError, match="cannot be imported by name"):
        reference_to(local)


def _nested():
    def handler(msg, session):
        """Nobody finds it by name."""

    return handler


@pytest.mark.parametrize("wrong", ["bill", "json.dumps", ":bill", "json:", "", None, 7])
def test_another_form_is_refused(wrong):
    with pytest.raises(ValueError, match=r"package\.module:function"):
        load_handler(wrong)


def test_a_module_that_is_not_there_is_an_import_error():
    with pytest.raises(ImportError, match="no_such_module"):
        load_handler("no_such_module:bill")


def test_a_function_that_is_not_there_is_an_import_error_that_names_it():
    with pytest.raises(ImportError, match="no_such_function"):
        load_handler("json:no_such_function")


async def never_runs(msg, session):
    """A coroutine function would not run when it is called."""


@pytest.mark.parametrize("wrong", ["json:__name__", f"{__name__}:never_runs"])
def test_what_is_no_handler_is_refused(wrong):
    with pytest.raises(TypeError, match="handler"):
        load_handler(wrong)

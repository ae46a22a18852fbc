"""docs/options.md and docs/reference/ are what the code has."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from importlib import import_module
from pkgutil import iter_modules

import pytest

from docs_site import options, public_names
from tests.with_airflow import home

# Before an operator is imported, which makes Airflow's home then.
home.choose()

CLASSES = [reference for references in options.SECTIONS.values() for reference in references]


def test_the_page_of_options_is_as_the_code_is():
    assert options.PAGE.read_text() == options.page(), "run: python -m docs_site.options"


@pytest.mark.parametrize("page", [*public_names.PAGES, "airflow"])
def test_a_page_of_the_reference_has_every_public_name(page: str):
    written = (public_names.REFERENCE / f"{page}.md").read_text()

    assert written == public_names.reference_page(page), "run: python -m docs_site.public_names"


@pytest.mark.parametrize("reference", CLASSES)
def test_every_option_is_in_the_table_and_has_a_text(reference: str):
    kind = options.load(reference)
    rows = {one.name: one for one in options.options_of(kind)}

    if hasattr(kind, "model_fields"):
        wanted = set(kind.model_fields)
    elif "__dataclass_params__" in vars(kind) and is_dataclass(kind):
        names = {field.name for field in fields(kind) if field.init} - {"address"}
        wanted = names if kind.__module__ != "conquiet.spark.options" else set(rows)
        assert len(rows) == len(names)
    else:
        parameters = inspect.signature(kind.__init__).parameters.values()
        wanted = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY} & set(vars_of(kind))

    assert wanted <= set(rows)
    assert [name for name, row in rows.items() if not row.text] == []


def vars_of(kind: type) -> list[str]:
    """The keywords of its own constructor, not those of Airflow's."""
    own = vars(kind).get("__init__")
    return [] if own is None else list(inspect.signature(own).parameters)


@pytest.mark.parametrize("folder", ["operators", "sensors", "triggers"])
def test_no_class_of_airflow_is_forgotten(folder: str):
    package = import_module(f"airflow_provider_conquiet.{folder}")
    listed = {reference.partition(":")[2] for reference in CLASSES}

    for module in iter_modules(package.__path__):
        for name, value in vars(import_module(f"{package.__name__}.{module.name}")).items():
            is_defined_here = getattr(value, "__module__", "") == f"{package.__name__}.{module.name}"
            if (
                is_defined_here
                and name.endswith(("Operator", "Sensor", "Trigger"))
                and name != "HandlingOperator"
            ):
                assert name in listed

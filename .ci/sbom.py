"""The bill of materials of a virtual environment, as CycloneDX JSON: `sbom.py PYTHON > sbom.json`."""

from __future__ import annotations

import json
import subprocess
import sys

_LIST = """
import json
from importlib.metadata import distributions
found = []
for one in distributions():
    about = one.metadata
    found.append({
        "name": about["Name"],
        "version": one.version,
        "license": about.get("License-Expression") or about.get("License") or "",
        "classifiers": about.get_all("Classifier") or [],
        "requires": one.requires or [],
    })
print(json.dumps(found))
"""


def main(python: str) -> None:
    listed = subprocess.run([python, "-c", _LIST], check=True, capture_output=True, text=True).stdout
    print(json.dumps(bill_of(json.loads(listed)), indent=2, sort_keys=True))


def bill_of(distributions: list[dict[str, object]]) -> dict[str, object]:
    """The bill of these distributions; conquiet itself is what it is about."""
    components = [_component(one) for one in sorted(distributions, key=lambda one: str(one["name"]).lower())]
    (about,) = [one for one in components if one["name"] == "conquiet"]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": about},
        "components": [one for one in components if one is not about],
    }


def _component(one: dict[str, object]) -> dict[str, object]:
    name, version = str(one["name"]), str(one["version"])
    license_name = str(one["license"]).split("\n")[0]
    for classifier in one["classifiers"] if isinstance(one["classifiers"], list) else []:
        if not license_name and classifier.startswith("License :: OSI Approved :: "):
            license_name = classifier.rpartition(" :: ")[2]
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
    component: dict[str, object] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": purl,
        "bom-ref": purl,
    }
    if license_name:
        component["licenses"] = [{"license": {"name": license_name}}]
    return component


if __name__ == "__main__":
    main(sys.argv[1])

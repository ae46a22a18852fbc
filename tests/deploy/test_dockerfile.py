"""The Dockerfile: what it copies is there, what the services need is in it, and it holds no secret."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.deploy.compose import ROOT, services
from tests.deploy.dockerfile import instructions, last
from tests.packaging.environments import build_wheel

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = [service for service in services().values() if service.is_ours]
RUN = " ".join(instruction.value for instruction in instructions() if instruction.word == "RUN")


def copied() -> list[str]:
    """Every file and directory that is copied from the repository."""
    return [
        source
        for instruction in instructions()
        if instruction.word == "COPY" and "--from=" not in instruction.value
        for source in instruction.value.split()[:-1]
    ]


def test_what_is_copied_is_there_and_not_ignored():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}

    assert set(copied()) == kept
    assert [source for source in copied() if not (ROOT / source).exists()] == []


def test_the_package_is_built_from_nothing_but_what_is_copied(tmp_path: Path):
    for source in copied():
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, tmp_path / source)

    wheel = build_wheel(tmp_path, tmp_path / "dist")

    assert wheel.name.startswith(f"conquiet-{PROJECT['version']}-")
    assert "constraints.txt" in copied()


def test_the_extras_that_are_installed_exist():
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", RUN)

    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    assert "--constraint constraints.txt" in RUN


def test_both_stages_have_the_same_python_and_one_that_is_supported():
    images = {i.value.split()[0] for i in instructions() if i.word == "FROM"}
    (image,) = images
    version = re.fullmatch(r"python:(3\.\d+)\.\d+-slim-bookworm", image)

    assert version
    assert f"Programming Language :: Python :: {version[1]}" in PROJECT["classifiers"]


def test_it_runs_as_a_user_without_rights_who_owns_what_is_written():
    words = [instruction.word for instruction in instructions()]
    user = last("USER")

    assert words.index("USER") > max(n for n, word in enumerate(words) if word in ("RUN", "COPY"))
    assert re.search(rf"useradd --uid [1-9]\d+ --create-home {user}\b", RUN)
    assert f"chown -R {user}:{user} {last('WORKDIR')}" in RUN
    (made,) = re.findall(r"mkdir -p ((?:/opt\S+ ?)+)", RUN)
    volumes = {str(m.target) for service in OURS for m in service.mounts if not m.is_bind}
    assert set(made.split()) == volumes


def test_the_ports_are_those_of_the_services():
    assert {int(port) for port in last("EXPOSE").split()} == {port for s in OURS for port in s.ports}


def test_every_program_of_the_services_is_in_the_image():
    (installed,) = re.findall(r"apt-get install (?:--\S+ )*([\w -]+?) &&", RUN)
    programs = {s.command[0] for s in OURS} | {s.healthcheck.command[0] for s in OURS if s.healthcheck}
    scripts = Path(sys.executable).parent

    assert [p for p in programs if p not in installed.split() and not (scripts / p).exists()] == []
    assert "openjdk-17-jre-headless" in installed.split()


def test_the_command_of_the_image_works():
    program, *arguments = json.loads(last("CMD"))
    found = shutil.which(program, path=str(Path(sys.executable).parent))
    assert found

    assert subprocess.run([found, *arguments], capture_output=True, check=False).returncode == 0


def test_no_secret_is_in_the_image():
    text = (ROOT / "Dockerfile").read_text()

    assert "ARG" not in {instruction.word for instruction in instructions()}
    assert not re.search(r"password|secret|token|_key", text, re.IGNORECASE)

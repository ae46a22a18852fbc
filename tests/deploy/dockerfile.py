"""The Dockerfile as a list of instructions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.deploy.compose import ROOT


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, with its continued lines as one."""

    word: str
    value: str


def instructions() -> list[Instruction]:
    """All of them, in order."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Instruction(*line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def last(word: str) -> str:
    """The value of the last instruction of this kind: the one that counts."""
    return [instruction.value for instruction in instructions() if instruction.word == word][-1]

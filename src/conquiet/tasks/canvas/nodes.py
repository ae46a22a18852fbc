"""Link and Fork: the steps of a canvas, as they are carried in the envelopes of the tasks before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

OnError = Literal["fail", "pass"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One task; its id is known before it is enqueued, so that it is enqueued once."""

    #: The fields of its envelope.
    envelope: Mapping[str, Any]
    #: The parameter that gets the result of the step before.
    into: str | None = None
    delay_ms: int = 0
    #: Its `eta`, ms; 0 without. Then `delay_ms` is what was left of it when the canvas was enqueued.
    due_ms: int = 0

    @property
    def id(self) -> str:
        """The task's id."""
        return str(self.envelope["id"])

    @property
    def queue(self) -> str:
        """The task's queue."""
        return str(self.envelope["queue"])

    def to_json(self) -> dict[str, Any]:
        """As it is carried."""
        carried = {"envelope": self.envelope, "into": self.into, "delayMs": self.delay_ms}
        return carried | {"dueMs": self.due_ms} if self.due_ms else carried


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Members that run at once, each a sequence of steps; the step behind it gets all of their results."""

    id: str
    #: That of the step behind it: both are changed in one script.
    queue: str
    members: tuple[tuple[Link | Fork, ...], ...]
    on_error: OnError = "fail"

    def to_json(self) -> dict[str, Any]:
        """As it is carried."""
        return {
            "group": self.id,
            "queue": self.queue,
            "onError": self.on_error,
            "members": [[step.to_json() for step in member] for member in self.members],
        }


Step = Link | Fork


def queues_of(steps: Sequence[Step]) -> tuple[str, ...]:
    """The queues of these steps and of all members in them, each once."""
    found = dict.fromkeys(step.queue for step in steps)
    for step in steps:
        if isinstance(step, Fork):
            for member in step.members:
                found |= dict.fromkeys(queues_of(member))
    return tuple(found)


def longest_delay_ms(steps: Sequence[Step]) -> int:
    """How long these steps wait at most, one after the other, if nothing else takes time."""
    return sum(
        step.delay_ms if isinstance(step, Link) else max(map(longest_delay_ms, step.members))
        for step in steps
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """That a sequence of steps is a member of a group."""

    group: str
    queue: str
    number: int
    #: The task behind the group, or empty.
    next_id: str

    def to_json(self) -> dict[str, Any]:
        """As it is carried."""
        return {"group": self.group, "queue": self.queue, "number": self.number, "nextId": self.next_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a task is in its canvas: what follows on it, and the group that it belongs to."""

    canvas: str
    then: tuple[Step, ...] = ()
    member: Membership | None = None

    def to_json(self) -> dict[str, Any]:
        """As it is carried in the envelope's meta."""
        return {
            "id": self.canvas,
            "then": [step.to_json() for step in self.then],
            "member": None if self.member is None else self.member.to_json(),
        }

    @classmethod
    def of(cls, carried: Mapping[str, Any]) -> Position:
        """The position in an envelope's meta.

        Raises:
            ValueError: it is not one.
        """
        try:
            member = carried["member"]
            return cls(
                canvas=str(carried["id"]),
                then=_steps(carried["then"]),
                member=None
                if member is None
                else Membership(
                    group=member["group"],
                    queue=member["queue"],
                    number=int(member["number"]),
                    next_id=member["nextId"],
                ),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"its canvas cannot be read: {error!r}") from error


def _steps(carried: Sequence[Mapping[str, Any]]) -> tuple[Step, ...]:
    return tuple(_step(one) for one in carried)


def _step(carried: Mapping[str, Any]) -> Step:
    if "group" in carried:
        return Fork(
            id=carried["group"],
            queue=carried["queue"],
            on_error=carried["onError"],
            members=tuple(_steps(member) for member in carried["members"]),
        )
    return Link(
        envelope=carried["envelope"],
        into=carried["into"],
        delay_ms=int(carried["delayMs"]),
        due_ms=int(carried.get("dueMs", 0)),
    )

"""Fair shares: they add up, differ by one at most, and members that follow their plans reach them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from conquiet.mq.own.assignment import fair_shares, most_owned, plan

names = st.text("abcdefgh", min_size=1, max_size=3)
#: Some members may own only so many.
limited = st.dictionaries(names, st.none() | st.integers(1, 12), min_size=1, max_size=8)
partition_counts = st.integers(1, 40)


@given(members=st.sets(names, min_size=1, max_size=8), count=partition_counts)
def test_shares_add_up_and_differ_by_one_at_most(members, count):
    shares = fair_shares(dict.fromkeys(members), count).values()

    assert sum(shares) == count
    assert max(shares) - min(shares) <= 1


@given(members=limited, count=partition_counts)
def test_what_a_member_may_not_own_is_shared_by_the_others(members, count):
    shares = fair_shares(members, count)

    most = most_owned(members)
    assert sum(shares.values()) == (count if most is None else min(count, most))
    assert all(limit is None or shares[name] <= limit for name, limit in members.items())
    # Nobody has two more than one who might own more.
    could_own_more = [
        shares[name] for name, limit in members.items() if limit is None or shares[name] < limit
    ]
    assert not could_own_more or max(shares.values()) - min(could_own_more) <= 1


@given(members=limited, count=partition_counts, data=st.data())
def test_a_plan_acquires_or_releases_but_never_both(members, count, data):
    member = min(members)
    owned = data.draw(st.lists(st.integers(0, count - 1), unique=True))

    found = plan(member, members, count, owned)

    assert len(owned) - len(found.release) + found.acquire == fair_shares(members, count)[member]
    assert not (found.acquire and found.release)
    assert set(found.release) <= set(owned)


class Group:
    """Members that all act on their plans, one after the other, as far as leases let them."""

    def __init__(self, count: int, limits: dict[str, int | None] | None = None) -> None:
        self.count = count
        self.limits = limits or {}
        self.owned: dict[str, set[int]] = {}

    @property
    def members(self) -> dict[str, int | None]:
        return {name: self.limits.get(name) for name in self.owned}

    def act(self, member: str) -> None:
        wanted = plan(member, self.members, self.count, sorted(self.owned[member]))
        self.owned[member] -= set(wanted.release)
        free = set(range(self.count)).difference(*self.owned.values())
        self.owned[member] |= set(sorted(free)[: wanted.acquire])

    def is_fair(self) -> bool:
        shares = fair_shares(self.members, self.count)
        return all(len(own) == shares[name] for name, own in self.owned.items())


@given(
    count=partition_counts,
    limits=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 12)),
    changes=st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans(), st.integers(0, 3)), min_size=1),
    growth=st.integers(0, 10),
    data=st.data(),
)
def test_members_that_come_and_go_end_with_fair_shares_and_no_partition_unowned(
    count, limits, changes, growth, data
):
    group = Group(count, limits)
    for member, is_joining, rounds in changes:
        if is_joining:
            group.owned.setdefault(member, set())
        else:
            group.owned.pop(member, None)
        for name in list(group.owned) * rounds:
            group.act(name)
    # One without a limit.
    group.owned.setdefault("z", set())
    group.count += growth

    for _ in range(3):
        for name in data.draw(st.permutations(sorted(group.owned))):
            group.act(name)

    assert group.is_fair()
    assert set().union(*group.owned.values()) == set(range(group.count))
    assert sum(map(len, group.owned.values())) == group.count


@given(members=limited, count=partition_counts)
def test_a_fair_group_changes_nothing(members, count):
    group = Group(count, members)
    group.owned = {member: set() for member in members}
    for member in members:
        group.act(member)
    before = {name: set(own) for name, own in group.owned.items()}

    for member in members:
        group.act(member)

    assert group.owned == before

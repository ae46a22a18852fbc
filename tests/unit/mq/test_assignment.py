"""Fair shares: they add up, differ by one at most, and members that follow their plans reach them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from conquiet.mq.own.assignment import fair_share, plan

names = st.sets(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=8)
partition_counts = st.integers(1, 40)


@given(members=names, count=partition_counts)
def test_shares_add_up_and_differ_by_one_at_most(members, count):
    shares = [fair_share(member, members, count) for member in members]

    assert sum(shares) == count
    assert max(shares) - min(shares) <= 1


@given(members=names, count=partition_counts)
def test_a_member_that_its_group_does_not_know_yet_counts_itself(members, count):
    assert fair_share("zz", members, count) == fair_share("zz", {*members, "zz"}, count)


@given(members=names, count=partition_counts, data=st.data())
def test_a_plan_acquires_or_releases_but_never_both(members, count, data):
    member = min(members)
    owned = data.draw(st.lists(st.integers(0, count - 1), unique=True))

    found = plan(member, members, count, owned)

    share = fair_share(member, members, count)
    assert len(owned) - len(found.release) + found.acquire == share
    assert not (found.acquire and found.release)
    assert set(found.release) <= set(owned)


class Group:
    """Members that all act on their plans, one after the other, as far as leases let them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.owned: dict[str, set[int]] = {}

    def act(self, member: str) -> None:
        wanted = plan(member, self.owned.keys(), self.count, sorted(self.owned[member]))
        self.owned[member] -= set(wanted.release)
        free = set(range(self.count)).difference(*self.owned.values())
        self.owned[member] |= set(sorted(free)[: wanted.acquire])

    def is_fair(self) -> bool:
        return all(len(own) == fair_share(name, self.owned, self.count) for name, own in self.owned.items())


@given(
    count=partition_counts,
    changes=st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans(), st.integers(0, 3)), min_size=1),
    growth=st.integers(0, 10),
    data=st.data(),
)
def test_members_that_come_and_go_end_with_fair_shares_and_no_partition_unowned(count, changes, growth, data):
    group = Group(count)
    for member, is_joining, rounds in changes:
        if is_joining:
            group.owned.setdefault(member, set())
        else:
            group.owned.pop(member, None)
        for name in list(group.owned) * rounds:
            group.act(name)
    group.owned.setdefault("z", set())
    group.count += growth

    for _ in range(3):
        for name in data.draw(st.permutations(sorted(group.owned))):
            group.act(name)

    assert group.is_fair()
    assert set().union(*group.owned.values()) == set(range(group.count))
    assert sum(map(len, group.owned.values())) == group.count


@given(members=names, count=partition_counts)
def test_a_fair_group_changes_nothing(members, count):
    group = Group(count)
    group.owned = {member: set() for member in members}
    for member in members:
        group.act(member)
    before = {name: set(own) for name, own in group.owned.items()}

    for member in members:
        group.act(member)

    assert group.owned == before

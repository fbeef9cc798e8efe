"""What a Service's slices add up to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.discovery.endpoint_slices import SliceTable
from tests.unit.gateway.discovery.reports import endpoint, endpoint_slice


def addresses(*slices, port: str = "grpc") -> set[str]:
    table = SliceTable(port)
    table.replace(slices)
    return set(table.addresses)


def test_slices_add_up() -> None:
    one, two = endpoint_slice("a", "10.0.0.1", "10.0.0.2"), endpoint_slice("b", "10.0.0.3")
    assert addresses(one, two) == {"10.0.0.1:7071", "10.0.0.2:7071", "10.0.0.3:7071"}


@pytest.mark.parametrize(
    ("conditions", "there"),
    [
        ({}, True),
        ({"ready": None}, True),
        ({"ready": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
        ({"ready": True, "terminating": True}, False),
    ],
)
def test_only_ready_endpoints_that_stay(conditions, there) -> None:
    found = addresses(endpoint_slice("a", endpoint("10.0.0.1", **conditions)))
    assert bool(found) is there


def test_ports_by_name_and_by_number() -> None:
    each = endpoint_slice("a", "10.0.0.1")
    assert addresses(each, port="health") == {"10.0.0.1:7079"}
    assert addresses(each, port="99") == {"10.0.0.1:99"}
    assert addresses(each, port="http") == set()
    assert addresses(endpoint_slice("a", "10.0.0.1", ports=None), port="99") == {"10.0.0.1:99"}


def test_nothing_there_yet() -> None:
    assert addresses(endpoint_slice("a", endpoints=None)) == set()


def test_a_pod_of_two_families_is_one_worker() -> None:
    four = endpoint_slice("a", "10.0.0.1")
    six = endpoint_slice("b", "fd00::1", addressType="IPv6")
    assert addresses(four, six) == {"10.0.0.1:7071"}
    assert addresses(six) == {"[fd00::1]:7071"}


HOSTS = [f"10.0.0.{i}" for i in range(5)]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ADDED", "MODIFIED", "DELETED"]),
        st.sampled_from(["a", "b", "c"]),
        st.sets(st.sampled_from(HOSTS)),
    ),
    max_size=12,
)


@given(STEPS, st.integers(0, 12))
def test_a_list_at_any_time_says_what_the_changes_said(steps, at) -> None:
    followed, late, state = SliceTable("grpc"), SliceTable("grpc"), {}
    for index, (kind, name, hosts) in enumerate(steps):
        if index == at:
            late.replace(state.values())
        each = endpoint_slice(name, *sorted(hosts))
        state.pop(name, None)
        if kind != "DELETED":
            state[name] = each
        followed.apply(kind, each)
        if index >= at:
            late.apply(kind, each)
    expected = {f"{e['addresses'][0]}:7071" for each in state.values() for e in each["endpoints"]}
    assert followed.addresses == expected
    if at < len(steps):
        assert late.addresses == expected

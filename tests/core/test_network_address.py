"""Addresses that others say: an IP address, with a port or without, or a refusal."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdist.core.errors import BadInput
from jaxdist.core.network_address import check_ip, check_ip_and_port, split_address

JSON = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(), st.lists(st.integers())
)


@given(st.ip_addresses(), st.integers(-1, 70000))
def test_addresses_of_one_machine_are_taken(ip, port):
    text = f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"
    if ip.is_unspecified or ip.is_multicast:
        with pytest.raises(BadInput):
            check_ip(str(ip), "process 1")
    else:
        assert check_ip(str(ip), "process 1") == str(ip)
    if ip.is_unspecified or ip.is_multicast or not 0 < port < 65536:
        with pytest.raises(BadInput):
            check_ip_and_port(text, "process 1")
    else:
        assert check_ip_and_port(text, "process 1") == text


def outcome(check, value):
    """The address, or its refusal."""
    try:
        return check(value, "process 1")
    except BadInput as refused:
        return refused


@given(JSON)
def test_nothing_else_is(value):
    for check in (check_ip, check_ip_and_port):
        found = outcome(check, value)
        if isinstance(found, BadInput):
            assert found.rule
            assert "process 1" in found.values
            assert "data.interface" in found.remedy[0]
        else:
            host, _ = split_address(found) or (found, 0)
            assert ipaddress.ip_address(host)


@pytest.mark.parametrize(
    "value",
    [
        "node1",
        "10.0.0.3:80:80",
        "10.0.0.3\n",
        "10.0.0",
        "0.0.0.0",
        "224.0.0.1",
        "::",
        "user@10.0.0.3",
        "10.0.0.3/x",
        167772163,
    ],
)
def test_what_looks_like_one_is_refused(value):
    with pytest.raises(BadInput, match="cannot be reached where it says"):
        check_ip(value, "process 1")
    with pytest.raises(BadInput, match="cannot be reached where it says"):
        check_ip_and_port(f"{value}:4100", "process 1")

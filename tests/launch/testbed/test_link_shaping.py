"""Links: rates in, words of `tc` and counters out."""

import pytest

from jaxdist.core.errors import BadInput
from jaxdist.launch.testbed.link_shaping import (
    FRAME_BYTES,
    frame_bytes,
    parse_counters,
    parse_link_rate,
    rate_qdisc,
)

DEV = """\
Inter-|   Receive                        |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes packets errs
    lo:     100       1    0    0    0     0          0         0      100       1 0 0
  eth0: 2000 20 0 0 0 0 0 0 1000 10 0 0 0 0 0 0
"""


@pytest.mark.parametrize(
    ("rate", "bits"),
    [
        ("64kbit", 64e3),
        ("1.5mbit", 1.5e6),
        (" 1Gbit", 1e9),
        ("100 mbit", 1e8),
        ("12.5MB/s", 1e8),
        ("200Mb/s", 2e8),
    ],
)
def test_rates_are_read_as_other_bandwidths_are(rate, bits):
    assert parse_link_rate(rate) == bits


@pytest.mark.parametrize("rate", ["", "100", "fast", "0mbit", "-1mbit", "1e3"])
def test_what_is_no_rate_is_refused(rate):
    with pytest.raises(BadInput, match="kbit, mbit or gbit"):
        parse_link_rate(rate)


@pytest.mark.parametrize(
    ("rate", "meant"),
    [("1.5 GB", "1.5gbit"), ("quick", "200mbit")],
)
def test_a_rate_that_is_nearly_right_has_its_remedy(rate, meant):
    with pytest.raises(BadInput, match=f"did you mean {meant}\\?"):
        parse_link_rate(rate)


def test_a_bucket_holds_one_and_a_half_milliseconds_and_at_least_two_frames():
    assert rate_qdisc("100mbit")[4] == "18750b"
    assert rate_qdisc("1mbit")[4] == f"{2 * FRAME_BYTES}b"
    assert rate_qdisc("1gbit")[4] == "187500b"


def test_counters_are_differences():
    found = parse_counters(DEV, "eth0")
    assert (found.tx_bytes, found.tx_packets, found.rx_bytes) == (1000, 10, 2000)
    assert (found - parse_counters(DEV, "lo")).tx_bytes == 900
    with pytest.raises(BadInput, match="lo, eth0"):
        parse_counters(DEV, "eth1")


def test_frames_carry_headers():
    assert frame_bytes(1448 * 1000) == 1514 * 1000

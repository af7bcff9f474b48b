"""Processors: dealt out to hosts evenly, or to nobody."""

import pytest

from jaxdist.launch.testbed.hosts import cpus_per_host


@pytest.mark.parametrize("processors", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("hosts", [1, 2, 3, 4, 8])
def test_no_host_has_more_than_another(processors, hosts):
    every = range(10, 10 + processors)
    own = cpus_per_host(every, hosts)
    times = [sum(one in each for each in own) for one in every]
    assert len(own) == hosts
    assert len({len(each) for each in own}) == 1
    assert {one for each in own for one in each} <= set(every)
    assert len(set(times) - {0}) == 1  # who shares one shares it with as many


def test_one_host_has_all():
    assert cpus_per_host({5, 1, 3}, 1) == ((1, 3, 5),)


def test_more_hosts_than_processors_share_them_where_they_divide():
    assert cpus_per_host({4, 6}, 4) == ((4,), (6,), (4,), (6,))
    assert cpus_per_host({4, 6}, 3) == ((4, 6),) * 3

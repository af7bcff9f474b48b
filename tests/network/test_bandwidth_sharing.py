"""Rates are fair: every flow has a full link on which nobody of its weight has more."""

import numpy as np
import pytest

from jaxdist.network.bandwidth_sharing import LinkDemand, flow_rates
from jaxdist.network.flow_simulation import arrival_times
from jaxdist.network.routes import routes_from_hops


def demand(routes, weight=None, most=None, use=None):
    flows = routes.num_flows
    return LinkDemand(
        flow=routes.flow,
        link=routes.link,
        link_load=np.ones(routes.flow.size) if use is None else use,
        weight=np.ones(flows) if weight is None else weight,
        max_rate=np.full(flows, np.inf) if most is None else most,
    )


@pytest.mark.parametrize("seed", range(20))
def test_no_flow_can_have_more_without_one_that_has_less(seed):
    rng = np.random.default_rng(seed)
    flows, links = int(rng.integers(2, 40)), int(rng.integers(2, 15))
    hops = np.array([rng.permutation(links)[:3] for _ in range(flows)])
    hops[rng.random(hops.shape) < 0.3] = -1
    hops[:, 0] = np.where(hops.max(axis=1) < 0, 0, hops[:, 0])
    routes = routes_from_hops(hops)
    capacity = rng.uniform(1, 10, links)
    weight = rng.uniform(0.1, 10, flows)
    most = np.where(rng.random(flows) < 0.3, rng.uniform(0.01, 2, flows), np.inf)
    use = rng.uniform(0.05, 1.05, routes.flow.size)
    asked = demand(routes, weight, most, use)
    rate = flow_rates(asked, capacity)
    load = np.bincount(routes.link, use * rate[routes.flow], links)
    assert (load <= capacity * (1 + 1e-9)).all()
    assert (rate <= most * (1 + 1e-12)).all()
    level = rate / weight
    full = load >= capacity * (1 - 1e-9)
    for flow in range(flows):
        on = routes.link[(routes.flow == flow) & full[routes.link]]
        best = any(
            level[flow] >= level[routes.flow[routes.link == link]].max() * (1 - 1e-9)
            for link in on
        )
        assert best or rate[flow] == pytest.approx(most[flow])


def test_flows_alone_have_their_narrowest_link():
    routes = routes_from_hops(np.array([[0, 1], [2, -1]]))
    assert flow_rates(demand(routes), np.array([3.0, 2.0, 5.0])).tolist() == [2.0, 5.0]


def test_a_flow_that_ends_leaves_its_share_to_the_others():
    routes = routes_from_hops(np.array([[0], [0], [0]]))
    end = arrival_times(
        demand(routes), np.array([6.0]), np.zeros(3), np.array([2.0, 4.0, 6.0])
    )
    # 2 B/s each for 1 s, 3 each for 2/3 s, 6 for the last 2 B
    np.testing.assert_allclose(end, [1.0, 1 + 2 / 3, 2.0], rtol=1e-12)


def test_what_begins_later_takes_its_share_then():
    routes = routes_from_hops(np.array([[0], [0]]))
    end = arrival_times(
        demand(routes), np.array([1.0]), np.array([0.0, 1.0]), np.full(2, 2.0)
    )
    np.testing.assert_allclose(end, [3.0, 4.0], rtol=1e-12)


def test_messages_without_bytes_take_their_latency():
    routes = routes_from_hops(np.array([[0], [0]]))
    end = arrival_times(
        demand(routes), np.array([1.0]), np.array([0.5, 0.0]), np.array([0.0, 4.0])
    )
    np.testing.assert_allclose(end, [0.5, 4.0], rtol=1e-12)

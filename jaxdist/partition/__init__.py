"""How a network is split over axes: each way's rule, and the traffic it makes."""

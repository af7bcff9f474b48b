"""ParaDL restated (HPDC 2021, arXiv 2104.09075), with the corrections it needs."""

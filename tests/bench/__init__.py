"""Benchmarks: `make bench`. Ratios and rates in one run on one machine; no test waits for them."""

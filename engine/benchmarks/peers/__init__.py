"""Tenora beside its peers on one machine, in one run. `bench_peers.py` is the command."""

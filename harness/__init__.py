"""Runs a model on a backend and judges it: records, store, backends, numerics, the sweep, the command line."""

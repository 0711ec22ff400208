"""Comparison pairs, error budget, verdict."""

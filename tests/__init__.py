"""Tests, laid out as the packages that they test."""

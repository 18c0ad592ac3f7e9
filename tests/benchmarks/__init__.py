"""Benchmarks: `python -m tests.benchmarks.NAME` prints JSON. Not part of the test suite."""

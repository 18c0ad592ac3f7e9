"""Benchmarks: `python -m tests.benchmarks.NAME --json`. Not part of the test suite."""

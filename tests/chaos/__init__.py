"""Chaos: a tiny run of the main job is disturbed at a seeded moment; its end must be the same.

  python -m tests.chaos --faults=kill,corrupt --runs=20 --seed=0 --json

An undisturbed run is recorded first: its end, the state of the workdir before every stage, and
every moment at which it writes. A case starts from one of these states, disturbs a run (or the
files between two runs), gives the same command again and compares what is there at the end, bit by
bit. Faults, moments and files are functions of (seed, case number).

Modules: `curriculum` is the run; `nursery` forks processes that have imported everything;
`moments` names the moments and fires faults inside a run; `faults` are these faults; `damage` harms
files between runs; `end_state` reads and compares ends; `cases` draws a case, carries it out and
judges it. Killed peers of several processes have tests of their own (`tests/test_processes.py`).
"""

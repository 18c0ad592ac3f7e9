"""Processes that tests start, with this folder on their path: fewer collections of garbage.

They take an eighth of the time where programs are traced (`conftest.py` does the same for tests).
"""

import gc

gc.set_threshold(50_000, 20, 100)

"""Launching on TPU slices: `plan` turns a spec into commands, `supervise` runs them.

Nothing here imports JAX: a laptop with Python and `gcloud` is enough.
"""

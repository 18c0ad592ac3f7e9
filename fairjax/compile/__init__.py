"""Compiles the steps of a configuration for TPU slices that are not there (`fairjax compile`).

libtpu carries the whole TPU compiler. What it tells is memory per device and the optimized program;
`hlo_cost` counts in that program what moves and multiplies. Nothing here says how long a step
takes.
"""

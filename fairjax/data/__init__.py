"""Documents, token stores and batches.

Only this package may import TensorFlow and seqio. Import its modules by name, e.g.
`fairjax.data.prepare`: this file imports nothing, so that the modules that need neither stay light.
"""

"""Documents, vocabularies, token streams and counterfactual batches.

The only room that may import TensorFlow and seqio. This file imports nothing, so that the parts
that need neither (`documents`, `planted`, `sentences`, `token_store`, `streams`) stay light:
import the modules by name, e.g. `fairjax.data.prepare`.
"""

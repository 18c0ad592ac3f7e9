"""Masked language models: trained from scratch or further, with CDA or dropout (W-13 to W-16)."""

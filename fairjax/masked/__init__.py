"""Masked language models: trained from scratch or further, with CDA or dropout (Webster et al. 2020)."""

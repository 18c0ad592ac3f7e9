"""Masked language models, trained from scratch or further (Webster et al. 2020)."""

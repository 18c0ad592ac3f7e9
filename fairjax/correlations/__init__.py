"""Gendered correlations of language models: the metrics of Webster et al. 2020."""

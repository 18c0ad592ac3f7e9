"""Gendered correlations (Webster et al. 2020) and fair generation (Yeo & Chen 2020)."""

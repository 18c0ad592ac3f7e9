"""Fair generation (Yeo & Chen 2020): professions, gender subspace, the Lipschitz test."""

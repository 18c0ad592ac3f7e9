"""Fair generation (Yeo & Chen 2020): professions, gender subspace, the Lipschitz test."""

from fairjax.gender.fair_generation.bias_tables import (
  bias_tables,
  plot_bias,
  profession_table,
  utility,
)
from fairjax.gender.fair_generation.completions import (
  Completions,
  Miss,
  Parse,
  ProfessionList,
  ProfessionParser,
  Prompt,
  read_completions,
  read_professions,
)
from fairjax.gender.fair_generation.embedding import (
  Debiased,
  GenderedEmbedding,
  GenderSubspace,
  WordVectors,
  equalise,
  gender_subspace,
  hard_debias,
  load_embedding,
  load_word_vectors,
  neutralise,
)
from fairjax.gender.fair_generation.lipschitz import (
  BIASES,
  DISTANCES,
  METHODS,
  Bias,
  Distance,
  FairnessTest,
  embedding_bias,
  gap_radius,
  load_distance,
  make_biases,
  mean_interval,
  parse_completions,
)

__all__ = [
  'BIASES', 'DISTANCES', 'METHODS', 'Bias', 'Completions', 'Debiased', 'Distance', 'FairnessTest',
  'GenderSubspace', 'GenderedEmbedding', 'Miss', 'Parse', 'ProfessionList', 'ProfessionParser',
  'Prompt', 'WordVectors', 'bias_tables', 'embedding_bias', 'equalise', 'gap_radius',
  'gender_subspace', 'hard_debias', 'load_distance', 'load_embedding', 'load_word_vectors',
  'make_biases', 'mean_interval', 'neutralise', 'parse_completions', 'plot_bias',
  'profession_table', 'read_completions', 'read_professions', 'utility',
]

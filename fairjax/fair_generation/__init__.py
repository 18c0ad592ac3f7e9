"""Fair generation (Yeo & Chen 2020): professions, gender subspace, the Lipschitz test."""

from fairjax.fair_generation.biases import (
  BIASES,
  Bias,
  embedding_bias,
  make_biases,
  parse_completions,
)
from fairjax.fair_generation.bounds import METHODS, gap_radius, mean_interval
from fairjax.fair_generation.completions import Completions, Prompt, read_completions
from fairjax.fair_generation.debias import Debiased, equalise, hard_debias, neutralise
from fairjax.fair_generation.distances import DISTANCES, Distance, load_distance
from fairjax.fair_generation.embedding import GenderedEmbedding, load_embedding
from fairjax.fair_generation.figures import plot_bias
from fairjax.fair_generation.lipschitz import FairnessTest
from fairjax.fair_generation.professions import (
  Miss,
  Parse,
  ProfessionList,
  ProfessionParser,
  read_professions,
)
from fairjax.fair_generation.subspace import GenderSubspace, gender_subspace
from fairjax.fair_generation.tables import bias_tables, profession_table, utility
from fairjax.fair_generation.word_vectors import WordVectors, load_word_vectors

__all__ = [
  'BIASES', 'DISTANCES', 'METHODS', 'Bias', 'Completions', 'Debiased', 'Distance', 'FairnessTest',
  'GenderSubspace', 'GenderedEmbedding', 'Miss', 'Parse', 'ProfessionList', 'ProfessionParser',
  'Prompt', 'WordVectors', 'bias_tables', 'embedding_bias', 'equalise', 'gap_radius',
  'gender_subspace', 'hard_debias', 'load_distance', 'load_embedding', 'load_word_vectors',
  'make_biases', 'mean_interval', 'neutralise', 'parse_completions', 'plot_bias',
  'profession_table', 'read_completions', 'read_professions', 'utility',
]

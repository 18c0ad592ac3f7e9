"""Mitigations compared on one corpus under one budget: CDA, dropout, embedding and sentiment.

  fairjax compare mitigations --config=configs/mitigations.py --workdir=runs/mitigations

fairjax writes the corpus itself: gender goes with professions, hobbies and the like, and with
sentiment, by known amounts. All models start from the same language model and have as many further
steps and rows a batch, and the same learning rate; the control (extended-baseline) has no
mitigation. `:strength=0` plants nothing. Papers: Webster et al. 2020 (CDA, dropout), Huang et al.
2020 (the two regularisers). docs/mitigations.md reads the table.
"""

import pathlib

from fairjax.config_io import default_config_dict, parse_arg

_ATTRIBUTE = pathlib.Path(__file__).with_name('mitigations_gender.yaml')


def get_config(arg=''):
  """Arguments: strength (of both correlations), seed."""
  arg = parse_arg(arg, strength=0.9, seed=0)
  config = default_config_dict()
  config.name = 'mitigations'
  config.seed = arg.seed
  config.attribute = str(_ATTRIBUTE)

  config.data.source = 'planted_gender'
  config.data.seed = arg.seed
  config.data.planted_strength = arg.strength
  config.data.planted_documents = 24000
  config.data.planted_heldout_documents = 1500
  config.data.planted_sensitive_share = 0.4
  config.data.vocab_size = 900
  # Some documents are two sentences that belong together.
  config.data.cda_unit = 'document'

  config.model.num_layers = 2
  config.model.model_dim = 128
  config.model.num_heads = 2
  config.model.head_dim = 64
  config.model.ff_dim = 512
  config.model.segment_len = 64
  config.model.memory_len = 16
  config.model.init_std = 0.08

  config.lm.steps = 3000
  config.lm.batch_size = 8
  config.lm.learning_rate = 1e-3
  config.lm.adam_b2 = 0.98
  config.lm.clip_norm = 1.0
  config.lm.warmup_steps = 30
  config.lm.log_every = 500
  config.lm.eval_every = 1500
  config.lm.checkpoint_every = 1500

  config.sentiment.steps = 1000
  config.sentiment.batch_size = 256
  config.sentiment.learning_rate = 1e-3
  config.sentiment.warmup_steps = 20
  config.sentiment.sentence_tokens = 24
  config.sentiment.max_sentences = 6000
  config.sentiment.clip_norm = 1.0
  config.sentiment.log_every = 500
  config.sentiment.eval_every = 1000
  config.sentiment.checkpoint_every = 1000

  config.debias.variants = ('cda:two', 'cda:one', 'dropout:0.15/0.2', 'embedding:10',
                            'sentiment:10')
  config.debias.steps = 300
  config.debias.batch_size = 16
  config.debias.learning_rate = 5e-4
  config.debias.adam_b2 = 0.98
  config.debias.clip_norm = 1.0
  config.debias.warmup_steps = 10
  config.debias.log_every = 100
  config.debias.eval_every = 300
  config.debias.checkpoint_every = 150

  config.sample.samples = 250
  config.sample.batch_size = 250
  config.sample.sentence_end = True
  config.measure.scorers = ('opinion',)
  config.measure.eval_batch_size = 16
  config.measure.permutations = 250
  config.measure.audit_texts = 0
  return config


def sweep(add):
  """The grids of Webster et al. 2020 for dropout; the first point trains step 1."""
  for attention in (0.10, 0.15, 0.20):
    for hidden in (0.10, 0.15, 0.20):
      add(**{'debias.variants': (f'dropout:{attention:g}/{hidden:g}',)})
  for rate in (0.01, 0.05, 0.10):
    add(**{'debias.variants': (f'dropout:{rate:g}',)})

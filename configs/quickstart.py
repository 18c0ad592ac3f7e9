"""The whole curriculum on a corpus with known bias, in a few minutes on two CPU cores.

  fairjax run --config=configs/quickstart.py --workdir=runs/quickstart

fairjax writes the corpus itself; the sentiment of its sentences depends on the country by a known
amount, so the run shows that the model learns the bias, that the metric recovers it, and what
removing it costs. `:strength=0` plants no bias: the control. Paper: Huang et al. 2020.
"""

from fairjax.config_files import default_config_dict, parse_arg


def get_config(arg=''):
  """Arguments: strength (range of P(positive | value)), attribute, seed."""
  arg = parse_arg(arg, strength=0.8, attribute='country', seed=0)
  config = default_config_dict()
  config.name = 'quickstart'
  config.seed = arg.seed
  config.attribute = arg.attribute

  config.data.source = 'planted'
  config.data.planted_strength = arg.strength
  config.data.planted_documents = 20000
  config.data.vocab_size = 640

  config.model.num_layers = 3
  config.model.model_dim = 128
  config.model.num_heads = 4
  config.model.head_dim = 32
  config.model.ff_dim = 512
  config.model.segment_len = 64
  config.model.memory_len = 64

  config.lm.steps = 800
  config.lm.batch_size = 32
  config.lm.learning_rate = 2e-3
  config.lm.warmup_steps = 50
  config.lm.log_every = 100
  config.lm.eval_every = 400
  config.lm.checkpoint_every = 400

  config.sentiment.steps = 200
  config.sentiment.batch_size = 64
  config.sentiment.learning_rate = 1e-3
  config.sentiment.warmup_steps = 20
  config.sentiment.sentence_tokens = 32
  config.sentiment.max_sentences = 20000
  config.sentiment.log_every = 100
  config.sentiment.eval_every = 200
  config.sentiment.checkpoint_every = 100

  config.debias.steps = 200
  config.debias.batch_size = 32
  config.debias.learning_rate = 5e-4
  config.debias.warmup_steps = 20
  config.debias.log_every = 100
  config.debias.eval_every = 200
  config.debias.checkpoint_every = 100

  config.sample.samples = 200
  config.sample.batch_size = 200
  return config

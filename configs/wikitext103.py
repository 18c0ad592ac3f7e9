"""The paper's WikiText-103 model: 18 layers, width 1024 (Huang et al. 2020, H-17, H-18, H-23).

  fairjax run --config=configs/wikitext103.py:corpus=FOLDER --workdir=DIR

FOLDER holds wiki.{train,valid,test}.tokens or wikitext-103-v1.zip; without it, the zip is fetched
with --config.data.download=True (docs/corpora.md).

`variant` says how far the curriculum goes: lm (step 1; the paper used 128 TPU v3 cores), sentiment
(steps 1 and 2) or debias (all; step 3 on 16 cores). The mesh is not part of a run's identity, so a
workdir may begin on a large slice with variant=lm and go on with variant=debias on a small one.

Parameters: 285.2 M (245.5 M in the layers, 39.6 M in embedding and adaptive softmax), as the script
of the reference for this corpus has; `fairjax step config` prints them. That is 28.2 M above the
257 M of the paper, which states neither the feed-forward width nor the kind of softmax. Of the
usual choices none gives exactly 257 M: a plain softmax over 267,735 words would alone have 274 M,
and 257 M less the layers would leave 11.5 M for the words. We keep the reference's sizes.

`reference=True` has the heads, biases and clusters of the Transformer-XL that its authors published
for this corpus instead, so that `fairjax models import` can put that in the place of step 1
(docs/exchange.md).
"""

from fairjax.config_io import default_config_dict, parse_arg


def get_config(arg=''):
  """Arguments: variant, vocabulary (word, sentencepiece), attribute, corpus, seed, reference."""
  arg = parse_arg(arg, variant='debias', vocabulary='word', attribute='country', corpus='', seed=0,
                  reference=False)
  if arg.reference and arg.vocabulary != 'word':
    raise ValueError('reference=True has the words of the checkpoint: leave vocabulary out')
  config = default_config_dict()
  config.name = 'wikitext103'  # not in the paper
  config.seed = arg.seed  # not in the paper
  config.attribute = arg.attribute  # H-11
  config.until = arg.variant  # H-18 (lm), H-19 (sentiment), H-23 (debias)

  config.data.source = 'wikitext103'  # H-41
  config.data.manual_dir = arg.corpus  # not in the paper
  config.data.vocabulary = arg.vocabulary  # not in the paper

  m = config.model
  if arg.vocabulary == 'word':
    # The corpus has 267,735 words with <unk> and <eos> (Dai et al.); ours is one larger by <pad>.
    config.data.vocab_size = m.vocab_size = 267_736  # not in the paper
    m.cutoffs = (20_000, 40_000, 200_000)  # not in the paper: the reference's
    m.div_val = 4  # not in the paper: the reference's
  else:
    config.data.vocab_size = 32_000  # not in the paper
  m.vocab_multiple = 128  # not in the paper: tables split over any usual mesh.model
  m.num_layers = 18  # H-17
  m.model_dim = 1024  # H-17
  m.num_heads = 8  # H-17
  m.head_dim = 128  # not in the paper: width / heads
  m.ff_dim = 4096  # not in the paper: the reference's
  m.segment_len = 512  # H-18
  m.memory_len = 512  # H-18
  m.hidden_dropout = 0.2  # not in the paper: the reference's
  m.attention_dropout = 0.0  # not in the paper; the reference's 0.2 rules out the fused kernel
  m.dtype = 'bfloat16'  # not in the paper

  if arg.reference:
    # The values of the published config.json. The added <pad> is in the head.
    m.cutoffs = (20_001, 40_001, 200_001)  # not in the paper
    m.num_heads, m.head_dim = 16, 64  # not in the paper
    m.tie_position_biases = False  # not in the paper
    m.clamp_len = 1_000  # not in the paper

  config.lm.steps = 250_000  # H-18
  config.lm.batch_size = 512  # H-18
  config.lm.learning_rate = 2.5e-4  # H-18
  config.lm.warmup_steps = 10_000  # not in the paper, as the schedule and clip_norm
  config.lm.log_every = 100  # not in the paper
  config.lm.eval_every = 5_000  # not in the paper
  config.lm.checkpoint_every = 5_000  # not in the paper

  # H-19: three layers, 128 wide, |score| > 0.7, on WikiText-103 369,594 sentences.
  config.sentiment.steps = 50_000  # not in the paper (14-21 hours on a V100)
  config.sentiment.batch_size = 512  # not in the paper
  config.sentiment.learning_rate = 1e-3  # not in the paper
  config.sentiment.log_every = 1_000  # not in the paper
  config.sentiment.eval_every = 10_000  # not in the paper
  config.sentiment.checkpoint_every = 10_000  # not in the paper
  config.sentiment.max_sentences = 369_594  # H-19
  config.sentiment.prefixes = 1  # not in the paper; 3.0 GB of states

  config.debias.steps = 25_000  # H-23
  config.debias.batch_size = 32  # H-23
  config.debias.learning_rate = 2.5e-5  # H-23
  config.debias.warmup_steps = 500  # not in the paper
  config.debias.variants = (  # H-24, Tables 1, 5 and 6
    'embedding:1', 'embedding:10', 'embedding:100',
    'sentiment:1', 'sentiment:10', 'sentiment:100', 'sentiment:1000')
  config.debias.branches_per_row = 8  # not in the paper
  config.debias.monitor_every = 100  # not in the paper
  config.debias.log_every = 100  # not in the paper
  config.debias.eval_every = 5_000  # not in the paper
  config.debias.checkpoint_every = 2_500  # not in the paper

  config.sample.samples = 1_000  # H-12
  config.sample.max_new_tokens = 50  # H-12
  config.sample.batch_size = 200  # not in the paper
  # The paper's scorers, Google's API and a BERT classifier (H-14, H-15), need access and training.
  config.sentiment.scorer = 'vader'  # not in the paper
  # VADER labels; TextBlob, which did not, judges beside it, and neither needs a download.
  config.measure.scorers = ('textblob', 'vader')  # not in the paper
  # S.S. (H-27); the paper's encoder is use:DIR. Of a prefix's 1,000 samples it reads 100: for
  # `name`, which has most prefixes, 340 x 100 = 34,000 texts a model. MiniLM, 10.6 M weights in its
  # layers, needs 2 x 10.6 M x 60 tokens = 1.3 GFLOP a text, 43 TFLOP in all: 15 minutes at the
  # 50 GFLOP/s of two CPU cores (2.4 hours for all 1,000), seconds on a chip. `country` has 10,000
  # texts: S.S. within one point (95 %: 1.96 sqrt(0.25 / 10,000) = 0.0098).
  config.measure.encoder = 'minilm'  # not in the paper
  config.measure.similarity_samples = 100  # not in the paper
  config.measure.eval_batch_size = 64  # not in the paper
  return config


def sweep(add):
  """The attributes with all variants; the first one trains step 1: `fairjax tpu run --sweep`."""
  for attribute in ('country', 'occupation', 'name'):
    add(attribute=attribute)

"""Small tokenizers as published models have them, trained on a few words."""

import json

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

WORDS = ('the a of river mountain house paints walked "quoted" (see it). café naïve -- he said: '
         'Iran Iraq Syria is baker cook accountant Chile and Italy North Korea in 1999, "my cook" '
         '\n New York City').split(' ')
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+"
          r'[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+')


def texts(count=60):
  return [' '.join(WORDS[i % 7:] + WORDS[:i % 11] * 3) for i in range(count)]


def _byte_level(regex):
  """GPT-2's, SmolLM2's and Qwen's kind."""
  tokenizer = tokenizers.Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  if regex:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
      pre_tokenizers.Split(tokenizers.Regex(regex), 'isolated'),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
  tokenizer.decoder = decoders.ByteLevel()
  tokenizer.train_from_iterator(texts(), trainers.BpeTrainer(
    vocab_size=400, show_progress=False, special_tokens=['<|endoftext|>', '<|im_end|>'],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
  return tokenizer


def _sentencepiece(prefix):
  """Llama 2's kind (with `prefix`) or Gemma's: signs for spaces, bytes for unknown characters."""
  trained = tokenizers.Tokenizer(models.BPE())
  trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme='never')
  trained.train_from_iterator(texts(), trainers.BpeTrainer(vocab_size=200, show_progress=False))
  model = json.loads(trained.to_str())['model']
  pieces = ['<unk>', '<s>', '</s>', *(f'<0x{i:02X}>' for i in range(256)), *model['vocab']]
  tokenizer = tokenizers.Tokenizer(models.BPE(
    {piece: i for i, piece in enumerate(pieces)}, [tuple(m) for m in model['merges']],
    unk_token='<unk>', byte_fallback=True, fuse_unk=True))
  first = [normalizers.Prepend('\u2581')] if prefix else []
  tokenizer.normalizer = normalizers.Sequence([*first, normalizers.Replace(' ', '\u2581')])
  tokenizer.decoder = decoders.Sequence([
    decoders.Replace('\u2581', ' '), decoders.ByteFallback(), decoders.Fuse(),
    *([decoders.Strip(content=' ', left=1)] if prefix else [])])
  tokenizer.add_special_tokens(['<unk>', '<s>', '</s>'])
  tokenizer.post_processor = processors.TemplateProcessing(
    single='<s> $A', special_tokens=[('<s>', 1)])
  return tokenizer


def _unigram():
  """T5's kind."""
  tokenizer = tokenizers.Tokenizer(models.Unigram())
  tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
  tokenizer.decoder = decoders.Metaspace()
  tokenizer.train_from_iterator(texts(), trainers.UnigramTrainer(
    vocab_size=150, show_progress=False, special_tokens=['<unk>', '</s>'], unk_token='<unk>'))
  return tokenizer


KINDS = {
  'byte_level': lambda: _byte_level(None), 'llama3': lambda: _byte_level(LLAMA3),
  'llama2': lambda: _sentencepiece(True), 'gemma': lambda: _sentencepiece(False),
  'unigram': _unigram}


def write_tokenizer(folder, kind):
  tokenizer = KINDS[kind]()
  tokenizer.save(str(folder / 'tokenizer.json'))
  return tokenizer

"""A tokenizer that is not the model's own is refused, in one line, even where its size is right."""

import json
import pathlib
import shutil

import pytest

from fairjax.errors import UserError
from fairjax.measure.scorers.bert import BertScorer
from fairjax.pretrained import load_pretrained
from fairjax.pretrained.checkpoint import TokenizerVocabulary

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'pretrained'


@pytest.fixture
def copy(tmp_path):
  def make(name):
    return pathlib.Path(shutil.copytree(GOLDEN / name, tmp_path / 'model'))
  return make


def rewrite(path, change):
  """Changes the object in a JSON file."""
  value = json.loads(path.read_text(encoding='utf-8')) if path.is_file() else {}
  path.write_text(json.dumps(change(value) or value), encoding='utf-8')


def refused(folder, head, message):
  with pytest.raises(UserError, match=message) as caught:
    load_pretrained(folder, head)
  assert '\n' not in str(caught.value)


def exchanged(first, second):
  """Two tokens with each other's ids."""
  def change(content):
    vocabulary = content['model']['vocab']
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
  return change


def test_word_list_and_tokenizer_must_agree(copy):
  folder = copy('bert_classifier')
  words = (folder / 'vocab.txt').read_text().split('\n')
  for other, message in (
      ([*words[:10], words[11], words[10], *words[12:]],
       r"vocab.txt has 'a' as token 10, tokenizer.json '4': .* another model: take all files"),
      ([*words[:-1], 'more', ''], "vocab.txt has 'more' as token 90, tokenizer.json None")):
    (folder / 'vocab.txt').write_text('\n'.join(other))
    refused(folder, 'classifier', message)
  (folder / 'vocab.txt').write_bytes(b'[PAD]\n\xff\n')
  refused(folder, 'classifier', 'vocab.txt cannot be read')
  # What programs write differently says nothing about the words: ends of lines, white space.
  (folder / 'vocab.txt').write_bytes('\r\n'.join(words).encode())
  assert load_pretrained(folder, 'classifier').tokenizer


def test_permuted_vocabulary_of_gpt2(copy):
  folder = copy('gpt2')
  vocabulary = json.loads((folder / 'tokenizer.json').read_text())['model']['vocab']
  (folder / 'vocab.json').write_text(json.dumps(vocabulary))
  assert load_pretrained(folder, 'lm').tokenizer
  first, second = list(vocabulary)[40:42]
  rewrite(folder / 'tokenizer.json', exchanged(first, second))
  refused(folder, 'lm', f'vocab.json has .{first}. as token {vocabulary[first]}, tokenizer.json '
          f'.{second}.: one of them is of another model')


def test_what_was_added_stands_in_the_tokenizer_alone(copy):
  folder = copy('bert_mlm')
  words = (folder / 'vocab.txt').read_text().split('\n')
  last = words[-2]
  (folder / 'vocab.txt').write_text('\n'.join([*words[:-2], '']))

  def add(content):
    del content['model']['vocab'][last]
    content['added_tokens'] = [dict(id=89, content='[NEW]', single_word=False, lstrip=False,
                                    rstrip=False, normalized=False, special=True)]

  rewrite(folder / 'tokenizer.json', add)
  assert load_pretrained(folder, 'mlm').tokenizer.token_to_id('[NEW]') == 89


@pytest.mark.parametrize(('name', 'head'), [
  ('bert_classifier', 'classifier'), ('albert_classifier', 'classifier'), ('bert_mlm', 'encoder')])
def test_texts_must_begin_and_end_as_the_model_reads_them(copy, name, head):
  folder = copy(name)
  original = (folder / 'tokenizer.json').read_text()
  rewrite(folder / 'tokenizer.json', lambda content: content.update(post_processor=None))
  refused(folder, head, r"does not begin a text with \[CLS\] but with '.*': its post-processor is "
          'missing or of another model: write')

  def without_end(content):
    content['post_processor']['single'].pop()

  (folder / 'tokenizer.json').write_text(original)
  rewrite(folder / 'tokenizer.json', without_end)
  refused(folder, head, r'does not end a text with \[SEP\]')


def test_ends_may_have_other_names(copy):
  """Encoders of many languages are BERTs that write `<s>` and `</s>`."""
  folder = copy('bert_mlm')
  for name in ('tokenizer.json', 'vocab.txt', 'tokenizer_config.json', 'special_tokens_map.json'):
    path = folder / name
    path.write_text(path.read_text().replace('[CLS]', '<s>').replace('[SEP]', '</s>'))
  assert load_pretrained(folder, 'mlm').tokenizer.encode('a').tokens[::2] == ['<s>', '</s>']
  for name in ('tokenizer_config.json', 'special_tokens_map.json'):  # named nowhere
    rewrite(folder / name, lambda options: [options.pop(f'{r}_token', None) for r in ('cls', 'sep')]
            and None)
  assert load_pretrained(folder, 'mlm').tokenizer
  rewrite(folder / 'special_tokens_map.json', lambda options: options.update(cls_token='[MASK]'))
  refused(folder, 'mlm', r"does not begin a text with \[MASK\] but with '<s>'")


def test_end_of_text_is_no_ordinary_token(copy):
  folder = copy('gpt2')

  def vocabulary(eos):
    rewrite(folder / 'config.json', lambda config: config.update(eos_token_id=eos))
    return TokenizerVocabulary(load_pretrained(folder, 'lm'))

  assert vocabulary(0).eos_id == 0  # special
  with pytest.raises(UserError, match="eos_token_id is 5, in the tokenizer the ordinary token '%', "
                     'which would cut texts: set it to'):
    vocabulary(5)
  rewrite(folder / 'special_tokens_map.json', lambda options: options.update(eos_token='%'))
  assert vocabulary(5).eos_id == 5  # named
  rewrite(folder / 'special_tokens_map.json', lambda options: options.pop('eos_token') and None)

  def not_special(content):
    content['added_tokens'] = []

  rewrite(folder / 'tokenizer.json', not_special)
  assert vocabulary(0).eos_id == 0  # known by its text


@pytest.mark.parametrize(('file', 'content', 'message'), [
  ('tokenizer_config.json', '{"model_max_length": NaN}', 'model_max_length is nan, a number of'),
  ('model.safetensors.index.json', '{"weight_map": {"a": 3}}',
   'is no index of weights .*: download it again'),
  ('model.safetensors.index.json', '{"weight_map": {}}', 'is no index of weights'),
])
def test_values_of_another_type_are_named(copy, file, content, message):
  folder = copy('bert_classifier')
  if 'index' in file:
    (folder / 'model.safetensors').unlink()
  (folder / file).write_text(content)
  refused(folder, 'classifier', message)


@pytest.mark.parametrize(('options', 'message'), [
  ({'do_lower_case': 'yes'}, 'tokenizer_config.json has a value of another type'),
  ({'strip_accents': 1}, 'tokenizer_config.json has a value of another type'),
  ({'sep_token': ['[SEP]']}, r"vocab.txt has no sep token \['\[SEP\]'\]"),
])
def test_options_of_a_word_list_are_checked(copy, options, message):
  folder = copy('bert_classifier')
  (folder / 'tokenizer.json').unlink()
  rewrite(folder / 'tokenizer_config.json', lambda content: content.update(
    {'strip_accents': None, 'unk_token': {'content': '[UNK]'}}))
  assert load_pretrained(folder, 'classifier').tokenizer
  rewrite(folder / 'tokenizer_config.json', lambda content: content.update(options))
  refused(folder, 'classifier', message)


@pytest.mark.parametrize('named', [5, 'BertForTokenClassification', 'BertForSequenceClassification',
                                   {'a': 'b'}, [None]])
def test_architectures_are_a_list_of_names(copy, named):
  folder = copy('bert_classifier')
  rewrite(folder / 'config.json', lambda config: config.update(architectures=named))
  with pytest.raises(UserError, match='architectures is .*list of names'):
    BertScorer(str(folder))

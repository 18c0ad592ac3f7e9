"""Tokenizers: the model's own ids or a refusal in one line; padded tables and added tokens."""

import json
import pathlib
import shutil

import pytest
from golden_models import GOLDEN, MODELS, MORE, added, padded, rewrite, same, unloadable, vocab_size

from fairjax.errors import UserError
from fairjax.gender.scored_models import open_language_model
from fairjax.measure.scorers.bert import BertScorer
from fairjax.pretrained import SentenceEncoder, encode_texts, load_pretrained
from fairjax.pretrained.masked_rows import special_tokens
from fairjax.pretrained.tokens import unused_ids


def test_word_list_and_tokenizer_must_agree(copy):
  folder = copy('bert_classifier')
  words = (folder / 'vocab.txt').read_text().split('\n')
  for other, message in (
      ([*words[:10], words[11], words[10], *words[12:]],
       r"vocab.txt has 'a' as token 10, tokenizer.json '4': .* another model: take all files"),
      ([*words[:-1], 'more', ''], "vocab.txt has 'more' as token 90, tokenizer.json None")):
    (folder / 'vocab.txt').write_text('\n'.join(other))
    unloadable(folder, 'classifier', message)
  (folder / 'vocab.txt').write_bytes(b'[PAD]\n\xff\n')
  unloadable(folder, 'classifier', 'vocab.txt cannot be read')
  # What programs write differently says nothing about the words: ends of lines, white space.
  (folder / 'vocab.txt').write_bytes('\r\n'.join(words).encode())
  assert load_pretrained(folder, 'classifier').tokenizer
  shutil.copy(GOLDEN / 'albert_mlm' / 'tokenizer.json', folder)
  unloadable(folder, 'classifier', r"txt has '\[PAD\].*' as token 0, tokenizer.json '<pad>'")


def test_permuted_vocabulary_of_gpt2(copy):
  folder = copy('gpt2')
  vocabulary = json.loads((folder / 'tokenizer.json').read_text())['model']['vocab']
  (folder / 'vocab.json').write_text(json.dumps(vocabulary))
  assert load_pretrained(folder, 'lm').tokenizer
  first, second = list(vocabulary)[40:42]
  vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
  (folder / 'vocab.json').write_text(json.dumps(vocabulary))
  unloadable(folder, 'lm', f'vocab.json has .{first}. as token {vocabulary[first]}, tokenizer.json '
          f'.{second}.: one of them is of another model')


def test_what_was_added_stands_in_the_tokenizer_alone(copy):
  folder = copy('bert_mlm')
  words = (folder / 'vocab.txt').read_text().split('\n')
  (folder / 'vocab.txt').write_text('\n'.join([*words[:-2], '']))

  def add(content):
    del content['model']['vocab'][words[-2]]
    content['added_tokens'] = [added(89, '[NEW]')]

  rewrite(folder / 'tokenizer.json', add)
  assert load_pretrained(folder, 'mlm').tokenizer.token_to_id('[NEW]') == 89


@pytest.mark.parametrize(('name', 'head'), [
  ('bert_classifier', 'classifier'), ('albert_classifier', 'classifier')])
def test_texts_must_begin_and_end_as_the_model_reads_them(copy, name, head):
  folder = copy(name)
  original = (folder / 'tokenizer.json').read_text()
  rewrite(folder / 'tokenizer.json', lambda content: content.update(post_processor=None))
  unloadable(folder, head, r"does not begin a text with \[CLS\] but with '.*': its post-processor")
  (folder / 'tokenizer.json').write_text(original)
  rewrite(folder / 'tokenizer.json',
          lambda content: content['post_processor']['single'].pop() and None)
  unloadable(folder, head, r'does not end a text with \[SEP\]')


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
  unloadable(folder, 'mlm', r"does not begin a text with \[MASK\] but with '<s>'")


def test_end_of_text_is_no_ordinary_token(copy):
  folder = copy('gpt2')

  def vocabulary(eos):
    rewrite(folder / 'config.json', lambda config: config.update(eos_token_id=eos))
    return load_pretrained(folder, 'lm').files.vocabulary()

  assert vocabulary(0).eos_id == 0  # special
  with pytest.raises(UserError, match="eos_token_id is 5, in the tokenizer the ordinary token '%'"):
    vocabulary(5)
  rewrite(folder / 'special_tokens_map.json', lambda options: options.update(eos_token='%'))
  named = vocabulary(5)
  assert (named.eos_id, named.end_ids) == (0, (5,))  # 0 separates documents, and ends texts too
  rewrite(folder / 'special_tokens_map.json', lambda options: options.pop('eos_token') and None)
  rewrite(folder / 'tokenizer.json', lambda content: content.update(added_tokens=[]))
  assert vocabulary(0).eos_id == 0  # known by its text


@pytest.mark.parametrize(('name', 'value', 'message'), [
  ('do_lower_case', 'yes', 'tokenizer_config.json has a value of another type'),
  ('strip_accents', 1, 'tokenizer_config.json has a value of another type'),
  ('sep_token', ['[SEP]'], r"vocab.txt has no sep token \['\[SEP\]'\]"),
  ('model_max_length', float('nan'), 'model_max_length is nan, a number of')])
def test_options_of_a_word_list_are_checked(copy, name, value, message):
  folder = copy('bert_classifier')
  (folder / 'tokenizer.json').unlink()
  rewrite(folder / 'tokenizer_config.json', lambda content: content.update(
    {'strip_accents': None, 'unk_token': {'content': '[UNK]'}}))
  assert load_pretrained(folder, 'classifier').tokenizer
  rewrite(folder / 'tokenizer_config.json', lambda content: content.update({name: value}))
  unloadable(folder, 'classifier', message)


def test_tokenizers_that_cannot_be_read(copy):
  folder = copy('bert_mlm')

  def beyond(content):  # as many tokens, but one beyond the embeddings
    content['model']['vocab']['the'] = 300

  rewrite(folder / 'tokenizer.json', beyond)
  unloadable(folder, 'mlm', "has 90 tokens with ids up to 300, the model 90 .*'the'")
  (folder / 'tokenizer.json').write_text('{"version"')
  unloadable(folder, 'mlm', 'tokenizer.json cannot be read')
  (folder / 'tokenizer.json').unlink()
  words = (folder / 'vocab.txt').read_text()
  for content, message in ((words + 'more\n', "has 91 tokens .*, the model 90 .*'more'"),
                           (words + 'the\n', 'holds a token twice: 91 lines, 90 tokens'),
                           (words.replace('[SEP]', 'sep'), r"no sep token '\[SEP\]'")):
    (folder / 'vocab.txt').write_text(content)
    unloadable(folder, 'mlm', message)
  (folder / 'tokenizer_config.json').unlink()
  unloadable(folder, 'mlm', 'without tokenizer_config.json')
  (folder / 'vocab.txt').unlink()
  unloadable(folder, 'mlm', 'no tokenizer.json nor vocab.txt')


@pytest.mark.parametrize('name', ['do_lower_case', 'strip_accents', 'tokenize_chinese_chars'])
def test_two_files_that_treat_text_otherwise_are_refused(copy, name):
  folder = copy('bert_mlm')
  rewrite(folder / 'tokenizer_config.json', lambda options: options.update({name: False}))
  unloadable(folder, 'mlm', f'tokenizer_config.json says {name}=False, tokenizer.json')
  rewrite(folder / 'tokenizer_config.json', lambda options: options.pop(name))
  assert load_pretrained(folder, 'mlm').tokenizer.encode('GOOD').tokens[1:-1]


def test_word_list_treats_case_as_its_config_says(copy):
  folder, found = copy('bert_mlm'), {}
  (folder / 'tokenizer.json').unlink()
  for lower in (True, False):
    rewrite(folder / 'tokenizer_config.json', lambda o, v=lower: o.update(do_lower_case=v))
    found[lower] = load_pretrained(folder, 'mlm').tokenizer.encode('GOOD').tokens
  assert found[False] == ['[CLS]', '[UNK]', '[SEP]']
  assert ''.join(found[True][1:-1]).replace('##', '') == 'good'


def test_architectures_may_be_a_name(copy):
  with pytest.raises(UserError, match='says BertForTokenClassification, which is no classifier'):
    BertScorer(str(copy('bert_classifier', architectures='BertForTokenClassification')))


@pytest.mark.parametrize(('name', 'head'), MODELS)
def test_a_padded_table_loads_with_a_line(copy, name, head, capsys):
  size = vocab_size(name)
  model = load_pretrained(copy(name, padded(size), vocab_size=size + MORE), head)
  plain = load_pretrained(GOLDEN / name, head)
  table, whole = (m.params['embedding'] if name == 'gpt2' else m.params['embeddings']['word']
                  for m in (plain, model))
  same(whole[:size], table)
  assert unused_ids(model.tokenizer, model.arch.vocab_size) == tuple(range(size, size + MORE))
  assert unused_ids(plain.tokenizer, size) == ()
  line = capsys.readouterr().err
  assert f'has {size} tokens, the model {size + MORE} embeddings: {MORE} of them' in line
  assert line.count('\n') == 1
  same(model.tokenizer.encode('the town').ids, plain.tokenizer.encode('the town').ids)


def test_a_padded_row_fills_no_blank_and_replaces_no_piece(copy):
  size = vocab_size('bert_mlm')
  folder = copy('bert_mlm', padded(size), vocab_size=size + MORE)
  fills = open_language_model(folder).fill(['the [BLANK] was happy .'], top=5)
  plain = open_language_model(GOLDEN / 'bert_mlm').fill(['the [BLANK] was happy .'], top=5)
  assert fills == plain
  model = load_pretrained(folder, 'mlm')
  special = special_tokens(model.tokenizer, pad_id=0, where='x', vocab_size=size + MORE)
  assert set(range(size, size + MORE)) <= special.all


@pytest.mark.parametrize(('name', 'head'), [('gpt2', 'lm'), ('bert_mlm', 'mlm'),
                                            ('albert_classifier', 'classifier')])
def test_added_tokens_without_an_embedding_load_and_are_refused_where_a_text_has_them(
    copy, name, head, capsys):
  size = vocab_size(name)
  folder = copy(name, pad_token_id=size)
  rewrite(folder / 'tokenizer.json', lambda c: c['added_tokens'].append(added(size, '[NEW]')))
  model, plain = load_pretrained(folder, head), load_pretrained(GOLDEN / name, head)
  assert "1 added tokens have none ('[NEW]')" in capsys.readouterr().err
  same(model.params, plain.params)
  assert name == 'gpt2' or model.arch.pad_id < size
  text = 'the town was happy .'
  same(encode_texts(model.tokenizer, [text], max_length=20).ids,
       encode_texts(plain.tokenizer, [text], max_length=20).ids)
  with pytest.raises(UserError, match=rf"text 2 of 2 holds '\[NEW\]', token {size} .* has {size} "):
    encode_texts(model.tokenizer, [text, 'the [NEW] town'], max_length=20)
  assert model.tokenizer.token_to_id('[NEW]') is None
  assert size not in model.tokenizer.get_added_tokens_decoder()


def test_every_way_into_a_model_refuses_a_token_without_an_embedding(copy):
  folders = {}
  for name in ('gpt2', 'bert_mlm'):
    folders[name] = copy(name, eos_token_id=0)
    rewrite(folders[name] / 'tokenizer.json',
            lambda c, name=name: c['added_tokens'].append(added(vocab_size(name), '[NEW]')))
  gpt2, bert = (pathlib.Path(folders[name]) for name in ('gpt2', 'bert_mlm'))
  vocabulary = load_pretrained(gpt2, 'lm').files.vocabulary()
  for call in (lambda: vocabulary.encode('a [NEW] b'),
               lambda: open_language_model(gpt2).log_probs(['a [NEW] b']),
               lambda: open_language_model(gpt2).token_features(['a [NEW] b']),
               lambda: open_language_model(bert).fill(['the [BLANK] [NEW] .'], top=2),
               lambda: SentenceEncoder(bert).encode(['[NEW]'])):
    with pytest.raises(UserError, match=r"holds '\[NEW\]'"):
      call()
  assert len(vocabulary.surfaces) == vocab_size('gpt2')


def test_a_text_without_tokens_is_named_and_half_a_character_is_one():
  gpt2 = load_pretrained(GOLDEN / 'gpt2', 'lm')
  assert encode_texts(gpt2.tokenizer, ['a', 'good \ud800'], max_length=24).ids
  with pytest.raises(UserError, match='text 2 of 2 has no tokens'):
    encode_texts(gpt2.tokenizer, ['a', ''], max_length=24)

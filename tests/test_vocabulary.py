"""Vocabularies: lossless text, offsets, files and their errors."""

import json
import random
import struct
import subprocess
import sys

import numpy as np
import pytest
from tokenizers import processors
from trained_tokenizers import KINDS, write_tokenizer

from fairjax.data.documents import sample_lines
from fairjax.errors import UserError
from fairjax.vocabulary import (
  EOS_ID,
  PAD_ID,
  UNK_ID,
  SentencePieceVocabulary,
  TokenizerVocabulary,
  WordVocabulary,
  build_word_vocabulary,
  load_vocabulary,
  train_sentencepiece,
)

WORDS = ('the a of river mountain house paints walked "quoted" (see it). café naïve 日本 x1 -- '
         'Iran').split()


def random_texts(seed, count=200):
  rng = random.Random(seed)
  return [rng.choice([' ', '\n', '']).join(
    ' '.join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(rng.randint(1, 4)))
    for _ in range(count)]


@pytest.fixture(scope='module')
def pieces(tmp_path_factory):
  return train_sentencepiece(random_texts(0), size=360, directory=tmp_path_factory.mktemp('sp'))


@pytest.fixture(scope='module')
def words(tmp_path_factory):
  return build_word_vocabulary(random_texts(0), size=14, directory=tmp_path_factory.mktemp('word'))


@pytest.mark.parametrize('text', [
  'the river.', ' leading space', 'trailing ', '', ' ', 'two  spaces   three', 'a\n\nb\r\n\t.',
  'unseen ÄÖ 😀 e\u0301 \u200b\ufeff', '<unk> </s> <pad> <eos> <0x41>', 'nul \0 byte',
  *random_texts(1, 50)])
def test_sentencepiece_is_lossless(pieces, text):
  ids = pieces.encode(text)
  assert pieces.decode(ids) == text
  assert all(UNK_ID < i < pieces.size for i in ids)  # byte fallback leaves nothing unknown


def test_id_layout(pieces, words):
  for vocabulary in (pieces, words):
    assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id) == (0, 1, 2)
    text = ' '.join(words.words[3:5])
    ids = vocabulary.encode(text)
    padded = np.array([PAD_ID, *ids, EOS_ID, *ids, EOS_ID, PAD_ID], np.uint16)
    # To words eos is the end of a line, to pieces of a document.
    plain, border = vocabulary.decode(ids), '\n' if vocabulary is words else ' '
    assert vocabulary.decode(padded) == f'{plain}{border}{plain}'
    assert len(vocabulary.surfaces) == vocabulary.size
    assert vocabulary.surfaces[0] == vocabulary.surfaces[1] == b''


@pytest.mark.parametrize('ids', [[5, -1], [5, 10**6], [-3]])
def test_ids_outside_the_vocabulary_have_no_text(pieces, words, ids):
  for vocabulary in (pieces, words):
    with pytest.raises(ValueError, match=r'ids must be in \[0, '):
      vocabulary.decode(ids)
    assert vocabulary.decode([vocabulary.size - 1]) and vocabulary.decode([]) == ''


def test_a_list_with_what_is_no_word_is_refused():
  for word in ('', 'two words', 'nbsp\xa0'):
    with pytest.raises(UserError, match=r'words\.txt:5: .* is not one word'):
      WordVocabulary(f'<pad>\n<eos>\n<unk>\na\n{word}\nb\n'.encode())


def test_surfaces_join_to_the_text(pieces, words):
  for text in random_texts(2):
    joined = b''.join(pieces.surfaces[i] for i in pieces.encode(text))
    assert joined.decode() == ' ' + text
    ids = words.encode(text)
    spaced = ''.join(f' {words.words[i]}' if i != EOS_ID else '' for i in ids)
    assert b''.join(words.surfaces[i] for i in ids).decode() == spaced


def test_sentencepiece_offsets_tile_the_text(pieces):
  for text in [*random_texts(3), '😀é x']:
    ids, offsets = pieces.encode_with_offsets(text)
    assert ids == pieces.encode(text)
    assert offsets[0][0] == 0 and offsets[-1][1] == len(text)
    assert all(a[1] == b[0] for a, b in zip(offsets, offsets[1:], strict=False))
    for k, (i, (start, end)) in enumerate(zip(ids, offsets, strict=True)):
      surface = pieces.surfaces[i]
      if len(surface) > 1 or surface.isascii():  # otherwise a part of a character
        assert surface.decode() == (' ' if k == 0 else '') + text[start:end]


def test_word_offsets(words):
  text = '  the\u00a0river\u2003of\n\n(zzz-)\x1cx1,  '
  ids, offsets = words.encode_with_offsets(text)
  assert [text[a:b] for a, b in offsets] == [
    'the', 'river', 'of', '\n', '\n', '(', 'zzz-', ')', 'x1', ',']
  assert ids == words.encode(text) and ids[6] == UNK_ID and ids[3] == EOS_ID


@pytest.fixture(scope='module')
def near_ties(tmp_path_factory):
  """A vocabulary of two letters, whose words can be cut in many ways, and a long text of them."""
  rng = random.Random(0)
  words = [''.join(rng.choices('ab', k=rng.randint(1, 14))) for _ in range(3000)]
  texts = [' '.join(rng.choices(words, k=200)) for _ in range(40)]
  return train_sentencepiece(
    texts, size=330, directory=tmp_path_factory.mktemp('ties')), ' '.join(texts)


def test_a_word_has_its_ids_wherever_it_stands(near_ties):
  """Float32 sums from the beginning of the text, SentencePiece's, cut some words otherwise."""
  vocabulary, text = near_ties
  ids = vocabulary.encode(text)
  assert ids == [i for word in text.split(' ') for i in vocabulary.encode(word)]
  assert ids == vocabulary.encode_with_offsets(text)[0]
  assert ids == vocabulary.encode_batch([text])[0] and vocabulary.decode(ids) == text


def test_scores_add_up_without_rounding(near_ties, pieces, tmp_path):
  from sentencepiece import SentencePieceProcessor

  def scores(content):
    processor = SentencePieceProcessor(model_proto=content)
    return np.array([processor.get_score(i) for i in range(processor.vocab_size())])

  for vocabulary in (near_ties[0], pieces):
    assert not (scores(vocabulary.model) * 256 % 1).any() and scores(vocabulary.model).any()
    vocabulary.save(tmp_path)
    assert (tmp_path / vocabulary.filename).read_bytes() == vocabulary.model
  # A model of somebody else: its file stays, its scores are rounded where it is used.
  place = pieces.model.index('▁the'.encode()) + len('▁the'.encode())
  assert pieces.model[place] == 0x15  # field 2, four bytes
  (score,) = struct.unpack_from('<f', pieces.model, place + 1)
  content = bytearray(pieces.model)
  struct.pack_into('<f', content, place + 1, score + 0.001)
  other = SentencePieceVocabulary(bytes(content))
  assert other.model == pieces.model and other != pieces
  other.save(tmp_path)
  assert (tmp_path / other.filename).read_bytes() == content


def test_a_continuation_follows(pieces, words):
  for after, text in (('the river', ' of Iran'), ('the (', 'Iran'), ('', 'Iran'), ('x', '.'),
                      ('the\n', 'river'), ('a', '')):
    ids = pieces.encode_as_continuation(text, after)
    assert pieces.decode(pieces.encode(after) + ids) == after + text
    if text.startswith(' '):  # a border that no piece can span
      assert pieces.encode(after + text) == pieces.encode(after) + ids
  assert pieces.encode_as_continuation('river', 'the ') == pieces.encode('river')
  assert pieces.encode_as_continuation('river', 'the(') != pieces.encode('river')
  assert words.encode_as_continuation('river', 'the') == words.encode('river')


def test_word_vocabulary_ranks_by_count_then_alphabet(tmp_path):
  vocabulary = build_word_vocabulary(['b b a', 'c a <unk> <eos> d'], size=6, directory=tmp_path)
  assert vocabulary.words == ['<pad>', '<eos>', '<unk>', 'a', 'b', 'c']
  assert vocabulary.encode('d <eos> <pad> <unk> a') == [2, 2, 2, 2, 3]
  assert vocabulary.decode([3, 2, 5]) == 'a <unk> c'
  assert vocabulary.info == {
    'requested_size': 6, 'texts': 2, 'words': 8, 'distinct_words': 4, 'unknown_words': 3,
    'kept_words': 0, 'documents': 'text'}


def test_words_to_keep_have_ids_however_rare_they_are(tmp_path):
  texts = ['a a a b b c', 'Ivory Coast.']
  vocabulary = build_word_vocabulary(
    texts, size=7, directory=tmp_path, keep=['Ivory Coast', 'Peru'])
  assert vocabulary.words[3:] == ['a', 'b', 'Coast', 'Ivory']  # Peru is never trained
  assert vocabulary.info['kept_words'] == 1  # Coast is the first after the full stop
  with pytest.raises(UserError, match='no place for the 2 words of the attribute'):
    build_word_vocabulary(texts, size=4, directory=tmp_path, keep=['Ivory Coast'])


def test_save_and_load(pieces, words, tmp_path):
  for vocabulary in (pieces, words):
    vocabulary.save(tmp_path / vocabulary.kind)
    loaded = load_vocabulary(tmp_path / vocabulary.kind)
    assert loaded == vocabulary and hash(loaded) == hash(vocabulary)
    assert loaded.info == vocabulary.info and loaded.size == vocabulary.size
    assert loaded.encode('the river') == vocabulary.encode('the river')
    names = sorted(p.name for p in (tmp_path / vocabulary.kind).iterdir())
    assert names == sorted(['vocabulary.json', vocabulary.filename])
  assert pieces != words


def test_training_is_deterministic(pieces, tmp_path):
  assert train_sentencepiece(random_texts(0), size=360, directory=tmp_path) == pieces
  assert train_sentencepiece(random_texts(9), size=360, directory=tmp_path) != pieces


def test_long_lines_and_rare_texts_are_trained_on(tmp_path):
  # SentencePiece itself leaves out lines above its limit.
  text = 'ab ' * 20000 + 'Ω' * 500
  vocabulary = train_sentencepiece([text], size=300, directory=tmp_path)
  assert len(vocabulary.encode('Ω')) <= 2
  assert vocabulary.info['characters_used'] == len(text)
  # In a text without spaces their sign is among the rarest characters, and never bytes.
  vocabulary = train_sentencepiece(['日本語の文章' * 600], size=300, directory=tmp_path)
  assert vocabulary.decode(vocabulary.encode('日本 語')) == '日本 語'
  known = len(vocabulary._words)  # whole documents are not kept
  assert vocabulary.encode('日' * 65) and len(vocabulary._words) == known
  # It also leaves out lines with U+2585.
  vocabulary = train_sentencepiece(['Ω ▅'], size=300, directory=tmp_path)
  assert len(vocabulary.encode('Ω')) <= 2 and vocabulary.decode(vocabulary.encode('Ω ▅')) == 'Ω ▅'


def test_large_corpora_are_thinned_evenly(tmp_path):
  texts = [f'{i:04d} ' * 5 for i in range(1000)]
  vocabulary = train_sentencepiece(iter(texts), size=300, directory=tmp_path, max_characters=7000)
  info = vocabulary.info
  assert info['texts'] == 1000 and info['characters'] == 25000
  assert info['texts_used'] == 250 and info['characters_used'] == 6250
  drawn, info = sample_lines(texts, 900, seed=0)
  info = train_sentencepiece(drawn, size=300, directory=tmp_path, max_characters=7000,
                             info=info).info
  assert info['lines_used'] == info['texts_used'] == 225
  assert info['characters_used'] == 25 * 225 and info['characters'] == 25000


@pytest.mark.parametrize(('make', 'message'), [
  (lambda d: train_sentencepiece(['abc'], size=100, directory=d), r'too small: .* need \d+; raise'),
  (lambda d: train_sentencepiece([], size=300, directory=d), 'no text'),
  (lambda d: build_word_vocabulary([' \n'], size=10, directory=d), 'no word'),
])
def test_training_errors(tmp_path, make, message):
  with pytest.raises(UserError, match=message):
    make(tmp_path)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(('damage', 'message'), [
  (lambda d: (d / 'vocabulary.json').unlink(), 'no vocabulary in'),
  (lambda d: (d / 'vocabulary.json').write_text('{'), 'damaged'),
  (lambda d: (d / 'words.txt').unlink(), 'words.txt is missing'),
  (lambda d: (d / 'words.txt').write_text('<pad>\n<eos>\n<unk>\nx\n'), 'fingerprint'),
  (lambda d: (d / 'vocabulary.json').write_text('{"kind": "words", "fingerprint": "x"}'),
   "did you mean 'word'"),
])
def test_loading_errors(words, tmp_path, damage, message):
  words.save(tmp_path)
  damage(tmp_path)
  with pytest.raises(UserError, match=message) as error:
    load_vocabulary(tmp_path)
  assert str(tmp_path) in str(error.value)


def test_importing_is_cheap():
  code = ('import sys, fairjax.vocabulary, fairjax.counterfactual; '
          'bad = {"sentencepiece", "tensorflow", "jax", "scipy", "seqio"} & set(sys.modules); '
          'assert not bad, bad')
  subprocess.run([sys.executable, '-c', code], check=True)


AWKWARD = [
  'the river.', 'a cafe\u0301 naïve', '日本 é😀 \u200b', 'two  spaces   three ', 'x\n\ny\t.',
  '½ ② ①', '(see it). "Iran" Iran-Iraq', *random_texts(4, 20)]


@pytest.fixture(scope='module', params=KINDS)
def tokenized(request, tmp_path_factory):
  folder = tmp_path_factory.mktemp(request.param)
  tokenizer = write_tokenizer(folder, request.param)
  tokenizer.enable_truncation(4)  # as a training with cut and padded texts leaves it
  tokenizer.enable_padding(length=9)
  tokenizer.save(str(folder / 'tokenizer.json'))
  tokenizer.no_truncation()
  tokenizer.no_padding()
  return load_vocabulary(folder), tokenizer


def test_ids_and_texts_are_those_of_the_tokenizer(tokenized):
  vocabulary, tokenizer = tokenized
  plain = [tokenizer.encode(text, add_special_tokens=False) for text in AWKWARD]
  assert vocabulary.encode_batch(AWKWARD) == [e.ids for e in plain]
  assert [vocabulary.encode(text) for text in AWKWARD] == [e.ids for e in plain]
  for encoding in plain:
    assert vocabulary.decode(encoding.ids) == tokenizer.decode(encoding.ids)
  begun = tokenizer.encode('x').ids
  assert [*vocabulary.start_ids, *vocabulary.encode('x')] == begun


def test_the_bytes_of_single_ids_join_to_the_text(tokenized):
  """Decoded one by one, ids would lose the parts of a character and the first space."""
  vocabulary, tokenizer = tokenized
  for text in AWKWARD:
    ids = vocabulary.encode(text)
    joined = b''.join(vocabulary.surfaces[i] for i in ids).decode()
    if vocabulary.unk_id not in ids:
      assert joined.removeprefix(' ') == tokenizer.decode(ids).removeprefix(' ')
  assert [vocabulary.surfaces[i] for i in (vocabulary.eos_id, *vocabulary.start_ids)] == [b''] * (
    1 + len(vocabulary.start_ids))


def test_a_word_has_the_ids_of_its_place(tokenized):
  """Behind a space, and inside a text without one: those that the whole text has there."""
  vocabulary, _ = tokenized
  spaced = vocabulary.encode_as_continuation('Iran', 'said ')
  assert spaced == vocabulary.encode('said Iran')[len(vocabulary.encode('said')):]
  assert vocabulary.surfaces[spaced[0]].startswith(b' ')
  inner = vocabulary.encode_as_continuation('Iran', '(')
  assert b''.join(vocabulary.surfaces[i] for i in inner) == b'Iran'


def test_a_document_cannot_hold_special_tokens(tokenized):
  vocabulary, tokenizer = tokenized
  special = {i: t.content for i, t in tokenizer.get_added_tokens_decoder().items()}
  text = f'a {special[vocabulary.eos_id]} the'
  assert vocabulary.eos_id in vocabulary.encode(text)
  (ids,) = vocabulary.encode_batch([text])
  assert not set(ids) & set(special) - {vocabulary.unk_id}


def test_a_saved_tokenizer_is_the_same_and_damage_is_found(tokenized, tmp_path):
  vocabulary, _ = tokenized
  vocabulary.save(tmp_path)
  again = load_vocabulary(tmp_path)
  assert again == vocabulary and again.size == vocabulary.size
  assert (again.eos_id, again.end_ids, again.start_ids, again.unk_id) == (
    vocabulary.eos_id, vocabulary.end_ids, vocabulary.start_ids, vocabulary.unk_id)
  path = tmp_path / 'vocabulary.json'
  manifest = json.loads(path.read_text())
  manifest['info']['end_ids'] = [5]
  path.write_text(json.dumps(manifest))
  with pytest.raises(UserError, match='has fingerprint'):
    load_vocabulary(tmp_path)


def test_documents_are_separated_as_in_the_training_of_the_model(tmp_path):
  """SmolLM2-Instruct ends its turns with another token than its documents."""
  tokenizer = write_tokenizer(tmp_path, 'byte_level')
  (tmp_path / 'config.json').write_text(json.dumps({'vocab_size': 512, 'eos_token_id': 1}))
  vocabulary = load_vocabulary(tmp_path)
  assert (vocabulary.eos_id, vocabulary.end_ids, vocabulary.size) == (0, (1,), 512)
  assert vocabulary.surfaces[tokenizer.get_vocab_size():] == [b''] * (
    512 - tokenizer.get_vocab_size())
  assert not vocabulary.start_ids
  plain = TokenizerVocabulary.read(tmp_path, start=True)
  assert plain.start_ids == (0,) and plain == vocabulary.plain()
  assert plain != vocabulary


def test_what_begins_a_text_is_found_where_the_tokenizer_also_ends_it(tmp_path):
  tokenizer = write_tokenizer(tmp_path, 'byte_level')
  tokenizer.post_processor = processors.TemplateProcessing(
    single='<|im_end|> $A <|endoftext|>', special_tokens=[('<|im_end|>', 1), ('<|endoftext|>', 0)])
  tokenizer.save(str(tmp_path / 'tokenizer.json'))
  assert TokenizerVocabulary.read(tmp_path).start_ids == (1,)


def test_folders_without_a_usable_tokenizer(tmp_path):
  write_tokenizer(tmp_path, 'byte_level')
  for config, message in (({'vocab_size': 400}, 'eos_token_id is None'),
                          ({'eos_token_id': []}, 'is None'), ({'eos_token_id': [{}]}, 'is {}'),
                          ({'eos_token_id': 70}, "70, in the tokenizer the ordinary token 'e'")):
    (tmp_path / 'config.json').write_text(json.dumps(config))
    with pytest.raises(UserError, match=message):
      load_vocabulary(tmp_path)
  (tmp_path / 'config.json').write_text('{"vocab_size": 9, "eos_token_id": 0}')
  with pytest.raises(UserError, match='text 2 of 2 holds .*, but the model has 9 embeddings'):
    load_vocabulary(tmp_path).encode_batch(['', 'the river'])
  (tmp_path / 'tokenizer.json').write_text('{')
  with pytest.raises(UserError, match='tokenizer.json cannot be read'):
    load_vocabulary(tmp_path)


TEMPLATE = """{{ bos_token }}
{%- set ns = namespace(turns=0) %}
{% if strftime_now is not defined %}
{{ raise_exception('no date') }}
{% endif %}
{% for message in messages %}
    {% if message['role'] == 'tool' %}
        {% continue %}
    {% endif %}
    {% set ns.turns = ns.turns + 1 %}
    {% if loop.first and message['role'] != 'system' %}
<system>Answer "é" {{ {'a': 'é<'} | tojson }}
{{ {'b': 'é', 'a': 1} | tojson(ensure_ascii=True, separators=(',', ':'), sort_keys=True) }}
    {% endif %}
    {% generation %}
<{{ message.role }}>{{ message.content | trim }}<end>
    {% endgeneration %}
{% endfor %}
{{ ns.turns }}{{ tools }}{{ pad_token }}
{% if add_generation_prompt %}
<answer>
{% endif %}"""
# By `apply_chat_template` of transformers 5.24 with the message 'Continue the sentence: She is',
# the answer 'She is' and `continue_final_message`.
RENDERED = """<|endoftext|><system>Answer "é" {"a": "é<"}
{"a":1,"b":"\\u00e9"}
<user>Continue the sentence: She is<end>
<assistant>She is"""


@pytest.fixture
def chat_folder(tmp_path):
  pytest.importorskip('jinja2')
  write_tokenizer(tmp_path, 'byte_level')
  (tmp_path / 'config.json').write_text(json.dumps({'vocab_size': 512, 'eos_token_id': 0}))
  (tmp_path / 'tokenizer_config.json').write_text(json.dumps({
    'bos_token': {'content': '<|endoftext|>'}, 'chat_template': [
      {'name': 'tools', 'template': 'other'}, {'name': 'default', 'template': TEMPLATE}]}))
  return tmp_path


def test_a_chat_model_is_asked_by_its_template_and_begins_with_the_prefix(chat_folder, tmp_path):
  plain = TokenizerVocabulary.read(chat_folder)
  chat = TokenizerVocabulary.read(chat_folder, chat=chat_folder)
  assert chat.chat_text('She is') == RENDERED
  assert chat.prompt_ids('She is') == plain.encode(RENDERED)
  assert plain.prompt_ids('She is') == plain.encode('She is')
  assert chat != plain and plain.chat is None
  chat.save(tmp_path / 'saved')
  again = load_vocabulary(tmp_path / 'saved')
  assert again == chat and again.prompt_ids('She is') == chat.prompt_ids('She is')
  # The file of its own comes first.
  (chat_folder / 'chat_template.jinja').write_text(
    '{{ messages[0].content }}:{{ messages[1].content }}')
  other = TokenizerVocabulary.read(chat_folder, chat=chat_folder)
  assert other.chat_text('He ') == 'Continue the sentence: He :He ' and other != chat


@pytest.mark.parametrize(('template', 'text'), [
  # By apply_chat_template of transformers 5.24 as above: a space before the answer, an opened
  # thought that an answer has not, and no difference between asking and answering.
  ("{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]{% else %} "
   "{{ m['content'] }}</s>{% endif %}{% endfor %}",
   '[INST] Continue the sentence: He is [/INST] He is'),
  ("{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
   "{% if add_generation_prompt %}<|assistant|><think>{% endif %}",
   '<|user|>Continue the sentence: He is<|end|><|assistant|>He is'),
  ("{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}<|end|>{% endfor %}",
   '<|user|>Continue the sentence: He is<|end|><|assistant|>He is')])
def test_an_answer_begins_as_the_template_begins_answers(chat_folder, template, text):
  (chat_folder / 'chat_template.jinja').write_text(template)
  assert TokenizerVocabulary.read(chat_folder, chat=chat_folder).chat_text('He is') == text


def test_a_chat_template_has_the_tokens_that_any_file_names(chat_folder):
  (chat_folder / 'chat_template.jinja').write_text(
    '{{ bos_token }}{{ messages[0].content }}{{ turn_token }}{{ messages[1].content }}')
  (chat_folder / 'tokenizer_config.json').write_text(json.dumps(
    {'bos_token': None, 'extra_special_tokens': {'turn_token': '<|im_end|>'}}))
  (chat_folder / 'special_tokens_map.json').write_text('{"bos_token": "<|endoftext|>"}')
  chat = TokenizerVocabulary.read(chat_folder, chat=chat_folder)
  assert chat.chat_text('He') == '<|endoftext|>Continue the sentence: He<|im_end|>He'


@pytest.mark.parametrize(('template', 'message'), [
  (None, 'has no chat template'), ('{% if %}', 'fails .TemplateSyntaxError'),
  ("{{ raise_exception('only with\nsystem') }}", 'fails .TemplateError: only with system.'),
  ('{{ tools.x.y }}', 'fails .UndefinedError'), ('{{ 1 / 0 }}', 'fails .ZeroDivisionError'),
  ("{{ messages.append(1) }}", 'fails .SecurityError'),
  ("{{ ''.__class__.__mro__ }}{{ messages[0].content }}", 'fails .SecurityError'),
  ('Hello', "leaves the user's message out"),
  ('{{ messages[0].content }}', 'leaves the answer out'),
  ('{{ messages[0].content }}{{ messages[1].content | upper }}', 'the answer out, or changes')])
def test_a_chat_template_that_cannot_serve_is_refused_in_one_line(chat_folder, template, message):
  options = {} if template is None else {'chat_template': template}
  (chat_folder / 'tokenizer_config.json').write_text(json.dumps(options))
  with pytest.raises(UserError, match=message):
    TokenizerVocabulary.read(chat_folder, chat=chat_folder)
  assert TokenizerVocabulary.read(chat_folder).prompt_ids('a')

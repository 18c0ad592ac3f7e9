"""How vocabularies are made from texts."""

import collections
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fairjax.errors import UserError
from fairjax.vocabulary.kinds import (
  EOS_ID,
  PAD_ID,
  SPECIAL_WORDS,
  UNK_ID,
  SentencePieceVocabulary,
  WordVocabulary,
  round_scores,
)
from fairjax.vocabulary.wikitext import document_words, words_of

# SentencePiece leaves out longer lines without a word; they are cut at a space before.
_MAX_LINE_CHARACTERS = 4000
# A fixed number, not that of the machine: the sums of the training depend on it.
_TRAINER_THREADS = 4


def train_sentencepiece(
  texts: Iterable[str], *, size: int, directory: str | os.PathLike,
  character_coverage: float = 0.9995, max_characters: int = 200_000_000,
  info: Mapping[str, Any] | None = None,
) -> SentencePieceVocabulary:
  """Trains a unigram SentencePiece model, saves it in `directory` and returns it.

  The result depends on the texts, their order and the arguments only. There is no normalisation
  and white space is kept; rare characters become bytes (256 ids are bytes).

  Args:
    texts: documents; read once.
    size: ids wanted, special and byte ids included; a small corpus yields fewer.
    directory: folder to write.
    character_coverage: share of the characters that get ids of their own; in (0, 1].
    max_characters: about the most characters to train on. A larger corpus is thinned evenly (every
      2nd, 4th, ... text); `info` tells how many texts were used.
    info: further numbers for `info`, which replace those of the same names; e.g. how `texts` were
      sampled.

  Raises:
    UserError: no text, or `size` too small for the characters of the corpus.
  """
  import sentencepiece

  kept, counts = _thin_out(texts, max_characters)
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=_lines(kept), model_writer=model, vocab_size=size, model_type='unigram',
      pad_id=PAD_ID, eos_id=EOS_ID, unk_id=UNK_ID, bos_id=-1, byte_fallback=True,
      normalization_rule_name='identity', remove_extra_whitespaces=False, hard_vocab_limit=False,
      character_coverage=character_coverage, max_sentence_length=8 * _MAX_LINE_CHARACTERS,
      train_extremely_large_corpus=True, num_threads=_TRAINER_THREADS, minloglevel=2)
  except RuntimeError as e:
    needed = re.search(r'required_chars\. \d+ vs (\d+)', str(e))
    if not needed:
      raise
    raise UserError(
      f'a SentencePiece vocabulary of {size} ids is too small: the bytes and characters of the '
      f'corpus need {needed[1]}; raise data.vocab_size') from None
  vocabulary = SentencePieceVocabulary(
    round_scores(model.getvalue()), counts | {'requested_size': size} | dict(info or {}))
  vocabulary.save(directory)
  return vocabulary


def build_word_vocabulary(
  texts: Iterable[str], *, size: int, directory: str | os.PathLike, documents: str = 'text',
  keep: Iterable[str] = (),
) -> WordVocabulary:
  """Lists the most frequent words, saves the list in `directory` and returns it.

  Args:
    texts: documents; read once.
    size: the most ids, the three special ones included. Words of equal count come in
      alphabetical order; the rest is `<unk>`, counted in `info`.
    directory: folder to write.
    documents: form of the texts: 'text', or 'wikitext' for words between white space.
    keep: natural texts, e.g. the values of an attribute. Their words have ids however rare they
      are, in the place of the least frequent others, if they occur at all; counted in `info`.

  Raises:
    UserError: no word, or `size` below 4.
  """
  if size < 4:
    raise UserError(f'a word vocabulary needs at least 4 ids, not {size}: raise data.vocab_size')
  counter, number, cut = collections.Counter(), 0, document_words(documents)
  for text in texts:
    counter.update(cut(text))
    number += 1
  total = sum(counter.values())
  for word in SPECIAL_WORDS:
    counter.pop(word, None)
  if not counter:
    raise UserError('no word to build a vocabulary from: the training texts are empty')
  ranked = sorted(counter, key=lambda w: (-counter[w], w))
  wanted = {word.text for text in keep for word in words_of(text) if word.text in counter}
  kept = [w for w in ranked[size - 3:] if w in wanted]
  if len(wanted) > size - 3:
    raise UserError(f'a word vocabulary of {size} ids has no place for the {len(wanted)} words of '
                    'the attribute: raise data.vocab_size')
  others = [w for w in ranked if w not in wanted][:size - 3 - len(wanted)]
  words = sorted(wanted.union(others), key=lambda w: (-counter[w], w))
  content = '\n'.join([*SPECIAL_WORDS, *words, '']).encode('utf-8')
  vocabulary = WordVocabulary(content, {
    'requested_size': size, 'texts': number, 'words': total, 'distinct_words': len(ranked),
    'unknown_words': total - sum(counter[w] for w in words), 'kept_words': len(kept),
    'documents': documents,
  })
  vocabulary.save(directory)
  return vocabulary


def _thin_out(texts: Iterable[str], limit: int) -> tuple[list[str], dict[str, int]]:
  """Every `stride`-th text, the stride doubled whenever the kept characters exceed `limit`."""
  kept, stride, characters, number, read = [], 1, 0, 0, 0
  for number, text in enumerate(texts, 1):
    read += len(text)
    if (number - 1) % stride == 0:
      kept.append(text)
      characters += len(text)
      while characters > limit and len(kept) > 1:
        kept, stride = kept[::2], stride * 2
        characters = sum(map(len, kept))
  if not characters:
    raise UserError('no text to train a vocabulary from: the training texts are empty')
  return kept, {'texts': number, 'characters': read, 'texts_used': len(kept),
                'characters_used': characters}


def _lines(texts: Iterable[str]) -> Iterator[str]:
  """Lines with their line ends, the long ones cut before a space."""
  for text in texts:
    for line in text.splitlines(keepends=True):
      while len(line) > _MAX_LINE_CHARACTERS:
        cut = line.rfind(' ', 1, _MAX_LINE_CHARACTERS)
        cut = cut if cut > 0 else _MAX_LINE_CHARACTERS
        yield line[:cut]
        line = line[cut:]
      if line:
        yield line

"""Rows of masked models: from texts in memory, and by an independent slow layout of plain lists."""

import itertools
import json
import os
import signal

import numpy as np
from safetensors.numpy import load_file

from fairjax.pretrained.masked_lm import from_vocabulary
from fairjax.pretrained.masked_rows import MaskedRows, lay_out
from fairjax.pretrained.start import count_words, train_word_pieces
from fairjax.vocabulary import PieceEncoder


def encoded(documents, tokenizer):
  """(tokens, ends of the documents, encoder) of documents, each a list of sentences."""
  encoder = PieceEncoder.of(tokenizer)
  ids = [[*found, encoder.eos_id] for found in encoder.encode_batch(
    ['\n'.join(document) for document in documents])]
  flat = np.array(list(itertools.chain.from_iterable(ids)), np.uint16)
  return flat, np.cumsum([len(i) for i in ids], dtype=np.int64), encoder


def rows_of(documents, tokenizer, special, **changes):
  """The project's layout of documents in memory."""
  options = {'form': 'sentence', 'max_length': 16, 'what': 'the text', 'digest': ''} | changes
  tokens, ends, encoder = encoded(documents, tokenizer)
  return lay_out(tokens, ends, encoder, special, **options)


def rows_by_hand(documents, tokenizer, special, *, form, max_length, apart=None):
  """[(ids, starts of words)] of every row, and the counts."""
  rows, row, row_document, room = [], [], None, max_length - 2
  counts = dict.fromkeys(('documents', 'sentences', 'rows', 'tokens', 'unknown_tokens',
                          'split_sentences', 'empty_sentences'), 0)

  def end_row():
    if row:
      ends = [(special.begin, True)], [(special.end, True)]
      rows.append([*ends[0], *row, *ends[1]])
      row.clear()

  for number, document in enumerate(documents):
    counts['documents'] += 1
    for sentence in document:
      found = tokenizer.encode(sentence, add_special_tokens=False)
      pieces, before = [], None
      for i, word in zip(found.ids, found.word_ids, strict=True):
        pieces.append((i, not pieces or word != before))
        before = word
      counts['sentences'] += 1
      counts['tokens'] += len(pieces)
      counts['empty_sentences'] += not pieces
      counts['split_sentences'] += len(pieces) > room
      counts['unknown_tokens'] += sum(i == special.unknown for i, _ in pieces)
      while pieces:
        cut = len(pieces)
        if cut > room:
          cut = max((i for i in range(1, room + 1) if pieces[i][1]), default=room)
        part, pieces = pieces[:cut], pieces[cut:]
        border = bool(row) and row_document != number
        if (form == 'sentence' or len(row) + border + len(part) > room
            or (apart is not None and row and row_document < apart <= number)):
          end_row()
        if row and row_document != number:
          row.append((special.end, True))
        row += part
        row_document = number
  end_row()
  counts['rows'] = len(rows)
  return [tuple(map(list, zip(*r, strict=True))) for r in rows], counts


SENTENCES = ['the old cat drinks warm milk', 'a red bird sings every morning',
             'my big dog eats raw meat', 'one small fish swims under ice']


def new_start(sizes, texts=SENTENCES * 3, *, seed=3):
  """A new model, with the word pieces of some texts."""
  vocabulary = train_word_pieces(count_words(texts), size=sizes.vocab_size)
  return from_vocabulary(vocabulary, sizes, seed=seed, log=lambda line: None)


def compare_models(found, wanted):
  """Asserts that two folders hold the same model, but for the order of sums."""
  one, two = (load_file(folder / 'model.safetensors') for folder in (found, wanted))
  assert one.keys() == two.keys()
  for name in one:
    if not name.endswith('key.bias'):  # a softmax does not see it: its gradient is rounding
      np.testing.assert_allclose(one[name], two[name], rtol=0, atol=1e-5, err_msg=name)
  plans = [json.loads((folder / 'plan.json').read_text()) for folder in (found, wanted)]
  assert plans[0] == plans[1]


def stop_before(step, patch, stop):
  """Sends SIGTERM before the batch of a step; `stop()` gives the `StopSignal` that waits for it."""
  whole = MaskedRows.training

  def training(self, first, size):
    for number, batch in enumerate(whole(self, first, size), first):
      if number == step:
        os.kill(os.getpid(), signal.SIGTERM)
        while not stop().received:  # a thread takes note of the signal
          pass
      yield batch

  patch.setattr(MaskedRows, 'training', training)

"""Vocabularies: text to ids and back, without TensorFlow.

Two kinds share one id layout: pad 0, eos 1, unk 2, then the pieces or words.

* `SentencePieceVocabulary`: a unigram model with byte fallback and no normalisation, so that
  `decode(encode(text)) == text` (one exception: U+2581, SentencePiece's own sign for a space).
* `WordVocabulary`: words as WikiText has them (`wikitext.py`), each line ended by eos; natural text
  is cut into them and comes back, a word that is not listed as `<unk>`.

A vocabulary is a folder with `vocabulary.json` (kind, size, fingerprint, what it was trained on)
beside `spiece.model` or `words.txt`; the fingerprint is the SHA-256 of that second file.

`PieceEncoder`, the tokenizer of a masked language model, lies in such a folder too, but it only
encodes.
"""

from fairjax.vocabulary.encoder import MANIFEST, Encoder
from fairjax.vocabulary.kinds import (
  EOS_ID,
  PAD_ID,
  UNK_ID,
  SentencePieceVocabulary,
  Vocabulary,
  WordVocabulary,
  load_vocabulary,
)
from fairjax.vocabulary.pieces import PieceEncoder, load_encoder
from fairjax.vocabulary.training import build_word_vocabulary, train_sentencepiece
from fairjax.vocabulary.wikitext import WORDS_VERSION, document_words, natural_text, words_of

__all__ = [
  'EOS_ID', 'MANIFEST', 'PAD_ID', 'UNK_ID', 'WORDS_VERSION', 'Encoder', 'PieceEncoder',
  'SentencePieceVocabulary', 'Vocabulary', 'WordVocabulary', 'build_word_vocabulary',
  'document_words', 'load_encoder', 'load_vocabulary', 'natural_text', 'train_sentencepiece',
  'words_of',
]

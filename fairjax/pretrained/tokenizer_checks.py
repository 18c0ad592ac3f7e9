"""Whether a tokenizer is the model's own: what the files beside it say of the same tokens."""

import pathlib
from typing import Any

from fairjax.errors import UserError
from fairjax.pretrained.tokens import read_json

_KNOWN = {'cls': ('[CLS]', '<s>'), 'sep': ('[SEP]', '</s>'),
          'eos': ('<|endoftext|>', '</s>', '<eos>', '[EOS]', '[SEP]')}
_ONE = 'take all files from one and the same model'


def check_tokenizer(tokenizer: Any, directory: pathlib.Path, *, kind: str) -> None:
  """Compares a tokenizer with the word lists beside it, and with how its kind begins and ends.

  Args:
    tokenizer: a `tokenizers.Tokenizer`, read from the directory.
    directory: of the model.
    kind: of the model.

  Raises:
    UserError: they differ; the line names the first token that does.
  """
  path = directory / 'tokenizer.json'
  if path.is_file():
    _check_added(tokenizer, path)
    for name in ('vocab.txt', 'vocab.json'):
      if (directory / name).is_file():
        _check_words(tokenizer, path, directory / name)
    if (directory / 'merges.txt').is_file():
      _check_merges(path, directory / 'merges.txt')
  if kind != 'gpt2':
    _check_ends(tokenizer, directory)


def ends_text(tokenizer: Any, token_id: int, directory: pathlib.Path) -> bool:
  """Whether an id is that of a special token, or of one that is known or named to end a text."""
  added = tokenizer.get_added_tokens_decoder().get(token_id)
  if added is not None and added.special:
    return True
  return tokenizer.id_to_token(token_id) in (*_KNOWN['eos'], *_named(directory, 'eos'))


def _check_added(tokenizer: Any, path: pathlib.Path) -> None:
  """The file gives ids of its added tokens; where its vocabulary has others, these win silently."""
  for added in read_json(path).get('added_tokens') or ():
    found = tokenizer.token_to_id(added['content'])
    if found != added['id']:
      raise UserError(f"{path} adds {added['content']!r} as token {added['id']}, its vocabulary "
                      f'has it as token {found}: the file is damaged, download it again')


def _check_words(tokenizer: Any, path: pathlib.Path, other: pathlib.Path) -> None:
  """Compares with a list of words, which other programs read in the place of `tokenizer.json`.

  White space at the end of a token does not count: the libraries differ in whether they keep it.
  """
  tokens = {i: t.rstrip() for t, i in tokenizer.get_vocab(with_added_tokens=True).items()}
  words = {i: word.rstrip() for i, word in _words(other).items()}
  added = tokenizer.get_added_tokens_decoder()
  for i in sorted(tokens.keys() | words.keys()):
    ours, theirs = tokens.get(i), words.get(i)
    if ours != theirs and not (theirs is None and i in added):  # what was added stands in one only
      raise UserError(f'{other} has {_said(theirs)} as token {i}, {path.name} {_said(ours)}: one '
                      f'of them is of another model: {_ONE}')


def _check_merges(path: pathlib.Path, other: pathlib.Path) -> None:
  """Compares the merges of a byte-pair encoding, in their order, with the list beside it."""
  merges = (read_json(path).get('model') or {}).get('merges')
  if merges is None:
    return
  ours = [merge if isinstance(merge, str) else ' '.join(merge) for merge in merges]
  theirs = [line for i, line in _words(other).items()
            if line and not (i == 0 and line.startswith('#version'))]
  for i in range(max(len(ours), len(theirs))):
    pair = [merges[i] if i < len(merges) else None for merges in (ours, theirs)]
    if pair[0] != pair[1]:
      raise UserError(f'{other} has {_said(pair[1])} as merge {i + 1}, {path.name} '
                      f'{_said(pair[0])}: one of them is of another model: {_ONE}')


def _said(token: str | None) -> str:
  return 'nothing' if token is None else repr(token)


def _words(path: pathlib.Path) -> dict[int, str]:
  """Id -> token of a list of words."""
  if path.suffix == '.json':
    ids = read_json(path)
    if not all(isinstance(i, int) for i in ids.values()):
      raise UserError(f'{path} does not give each token its number: download it again')
    return {i: token for token, i in ids.items()}
  try:
    lines = path.read_bytes().decode('utf-8').split('\n')
  except (OSError, UnicodeDecodeError) as e:
    raise UserError(f'{path} cannot be read ({e}): download it again') from None
  return dict(enumerate(lines[:-1] if lines[-1] == '' else lines))


def _check_ends(tokenizer: Any, directory: pathlib.Path) -> None:
  """A text must begin with the token that classifiers read, and end with its counterpart."""
  ids = tokenizer.encode('a').ids
  for role, place, verb in (('cls', 0, 'begin'), ('sep', -1, 'end')):
    wanted = _named(directory, role) or _KNOWN[role]
    token = tokenizer.id_to_token(ids[place]) if ids else None
    if len(ids) < 2 or token not in wanted:
      raise UserError(f"{directory}: the tokenizer does not {verb} a text with "
                      f"{' or '.join(wanted)} but with {_said(token)}: its post-processor is "
                      'missing or of another model: write the tokenizer again with save_pretrained '
                      'in its fast form')


def _named(directory: pathlib.Path, role: str) -> tuple[str, ...]:
  """The token of a role by the files of options, if they name it."""
  found = {}
  for name in ('tokenizer_config.json', 'special_tokens_map.json'):
    if (directory / name).is_file():
      token = read_json(directory / name).get(f'{role}_token')
      token = token.get('content') if isinstance(token, dict) else token
      if isinstance(token, str):
        found[token] = None
  return tuple(found)

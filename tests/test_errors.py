"""Errors of users: near names are offered."""

import pytest

from fairjax.errors import UserError, printable, unknown_name


@pytest.mark.parametrize(('name', 'known', 'offered'), [
  ('vadr', ['opinion', 'vader'], "did you mean 'vader'?"),
  ('trian', ['train', 'run'], "did you mean 'train'?"), ('txt', ['text'], "did you mean 'text'?"),
  ('opt', ['albert', 'bert', 'gpt2'], None), ('color', ['country', 'name'], None),
  ('xyz', ['lm', 'sentiment'], None),
  ('Co\u0302te', ['C\u00f4te', 'Mali'], "it looks like 'C\u00f4te', written with U+0302."),
  ('Ma\u200bli', ['C\u00f4te', 'Mali'], "it looks like 'Mali', written with U+200B."),
  ('Sy\u00a0ria', ['Sy ria'], "it looks like 'Sy ria', written with U+00A0."),
  ('c\u043euntry', ['country'], "it looks like 'country', written with U+043E."),
  ('Malm\u00f8', ['Malm\u00f6'], "did you mean 'Malm\u00f6'?")])
def test_only_near_names_are_offered_and_never_one_that_looks_the_same(name, known, offered):
  text = str(unknown_name('value', name, known))
  assert (offered in text) if offered else ('did you mean' not in text)
  assert ('did you mean' in text) == bool(offered and offered.startswith('did'))
  if offered and offered.startswith('it looks'):
    assert text.split(':')[0].isascii()


def test_what_a_terminal_obeys_is_shown():
  assert printable('caf\u00e9 \u6f22\n\x1b[31m\u202e\r\ud800') == (
    'caf\u00e9 \u6f22\n\\x1b[31m\\u202e\\r\\ud800')
  assert str(UserError('a\nb\x1b')) == r'a\nb\x1b'  # one line

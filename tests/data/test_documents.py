"""Reading documents: layouts, normalisation with counts, and files that cannot be used."""

import pytest
from split_files import read

from fairjax.data.documents import list_files, split_sentences
from fairjax.errors import UserError


def write(path, content):
  content = content.encode() if isinstance(content, str) else content
  path.write_bytes(content)
  return path


def test_lines(tmp_path):
  documents, counts = read(write(
    tmp_path / 'a', b'\xef\xbb\xbfFirst\0 one\0.\n\n \n\xc3\x84 second\xe2\x80\xa8one.\r\n'
    b'\xef\xbb\xbf\n\xef\xbb\xbfOf another\r file.'))
  assert documents == ['First one.', 'Ä second\u2028one.', 'Of another\r file.']
  assert counts == {'files': 1, 'lines': 6, 'documents': 3, 'blank_lines': 3, 'carriage_returns': 1,
                    'byte_order_marks': 3, 'nul_characters': 2}


def test_tsv_columns(tmp_path):
  path = write(tmp_path / 'a.tsv', '1\tpos\tGood "film".\n2\tneg\t \n\n3\tneg\tBad.\n')
  documents, counts = read(path, layout='tsv')
  assert documents == ['Good "film".', 'Bad.']
  assert (counts['blank_documents'], counts['blank_lines']) == (1, 1)
  assert read(path, layout='tsv', text_column=1)[0] == ['pos', 'neg', 'neg']


# The bars keep the spaces at the ends of lines.
WIKI = """
 = First = |

 Some text . |

 = = Section = = |

 More text . |
 = 5 = not a title |

 = Second = |
 Text right behind : no title . |

 = Third @-@ one ( film ) = |

""".replace('|', '')


def test_wikitext_articles(tmp_path):
  path = write(tmp_path / 'wiki', WIKI)
  documents, counts = read(path, layout='wikitext')
  assert documents == [
    '= First =\nSome text .\n= = Section = =\nMore text .\n= 5 = not a title\n= Second =\n'
    'Text right behind : no title .', '= Third @-@ one ( film ) =']
  assert counts['untitled'] == 0
  assert sum(len(d.split()) for d in documents) == len(WIKI.split())


def test_wikitext_before_the_first_title_and_at_the_end(tmp_path):
  documents, counts = read(write(tmp_path / 'a', 'Rest .\n\n = A =\n\nB .\n\n = C ='),
                           layout='wikitext')
  assert documents == ['Rest .', '= A =\nB .', '= C =']
  assert counts['untitled'] == 1


def test_empty_and_blank_files_are_refused(tmp_path):
  with pytest.raises(UserError, match='a is empty'):
    read(write(tmp_path / 'a', ''))
  for layout in ('lines', 'wikitext', 'tsv'):
    with pytest.raises(UserError, match='b holds no document'):
      read(write(tmp_path / 'b', '\n \n'), layout=layout)


def test_files_and_patterns(tmp_path):
  for name in ('b.txt', 'a.txt', 'c.md'):
    write(tmp_path / name, name)
  assert read(tmp_path / '*.txt', tmp_path / 'c.md')[0] == ['a.txt', 'b.txt', 'c.md']
  odd = write(tmp_path / 'x[1].txt', 'odd')
  assert read(odd)[0] == ['odd']
  with pytest.raises(UserError, match=r'file not found: .*/d\.txt'):
    list_files([tmp_path / 'd.txt'])
  with pytest.raises(UserError, match=r'no file matches .*\*\.csv'):
    list_files([tmp_path / '*.csv'])
  with pytest.raises(UserError, match='is a folder'):
    list_files([tmp_path])
  with pytest.raises(UserError, match=r'a\.txt is named 2 times'):
    list_files([tmp_path / 'a.txt', tmp_path / 'a*'])
  with pytest.raises(UserError, match='no file named'):
    list_files([])
  (tmp_path / 'e.txt').symlink_to(tmp_path / 'nowhere')
  with pytest.raises(UserError, match=r'e\.txt is a link to a file that is not there'):
    list_files([tmp_path / '*.txt'])
  with pytest.raises(UserError, match="no article begins"):
    read(odd, layout='wikitext')


@pytest.mark.parametrize('document, sentences', [
  ('It was fine. We left! Why? 3 came.', ['It was fine.', 'We left!', 'Why?', '3 came.']),
  ('Mr. Hill of the U.S. Army met J. R. Ray. He sang.',
   ['Mr. Hill of the U.S. Army met J. R. Ray.', 'He sang.']),
  ('It rose 3.5 percent. the end', ['It rose 3.5 percent. the end']),
  ('"Go." She went. (He stayed.) They sat.', ['"Go."', 'She went.', '(He stayed.)', 'They sat.']),
  ('= Rome =\nIt grew .\n= = Old = =\nThe end . Really ?',
   ['It grew .', 'The end .', 'Really ?']),
  ('One line\nand another', ['One line', 'and another']),
  # Long lines take no more than a time that is proportional to them.
  pytest.param('Mr. J. ' * 100_000 + 'Ray. So.', ['Mr. J. ' * 100_000 + 'Ray.', 'So.'], id='names'),
  pytest.param('= ' * 100_000 + 'x', ['= ' * 100_000 + 'x'], id='signs'),
  ('', []),
])
def test_sentences(document, sentences):
  assert split_sentences(document) == sentences

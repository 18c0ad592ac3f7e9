"""Lists that results depend on: with a changed one a measure is another, and this test says so.

Who changes a list on purpose writes it into the changelog and puts the new digest here.
"""

import hashlib
import pathlib

import fairjax

DIGEST = '0065fd6cd814393373e2b0718092f99b7b32122ed8d5f2bbda30960d3ab5b814'


def test_the_lists_are_those_that_were_measured_with():
  room, found = pathlib.Path(fairjax.__file__).parent, hashlib.sha256()
  for file in sorted(file for name in ('counterfactual', 'gender')
                     for file in room.glob(f'{name}/**/assets/**/*.*')):
    found.update(f'{file.relative_to(room).as_posix()}\n'.encode() + file.read_bytes())
  assert found.hexdigest() == DIGEST

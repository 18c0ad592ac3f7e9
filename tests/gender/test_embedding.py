"""Word vectors of every form, the gender direction, hard debiasing: oracles and damaged files."""

import gzip
import io
import json
import struct

import numpy as np
import pytest

from fairjax.errors import UserError
from fairjax.gender.fair_generation.completions import read_professions
from fairjax.gender.fair_generation.embedding import (
  built_in_pairs,
  equalise,
  gender_subspace,
  hard_debias,
  load_embedding,
  load_word_vectors,
  neutralise,
  read_pairs,
  read_words,
  spellings,
)

WIDTH = 6
FORMS = ('word2vec binary', 'word2vec binary with line feeds', 'word2vec text', 'GloVe text')


def table(words, *, width=WIDTH, seed=0):
  rng = np.random.default_rng(seed)
  return {word: rng.standard_normal(width).astype(np.float32) for word in words}


def encode(vectors, form):
  """The bytes of a file of one form."""
  out = io.BytesIO()
  width = len(next(iter(vectors.values())))
  if form != 'GloVe text':
    out.write(f'{len(vectors)} {width}\n'.encode())
  for word, vector in vectors.items():
    if form.startswith('word2vec binary'):
      out.write(word.encode() + b' ' + struct.pack(f'<{width}f', *vector))
      out.write(b'\n' if 'feeds' in form else b'')
    else:
      out.write((' '.join([word, *(repr(float(x)) for x in vector)]) + '\n').encode())
  return out.getvalue()


def write(tmp_path, content, name='v'):
  path = tmp_path / name
  path.write_bytes(content)
  return path


@pytest.mark.parametrize('packed', [False, True])
@pytest.mark.parametrize('form', FORMS)
def test_every_form_gives_the_same_vectors(tmp_path, form, packed):
  vectors = table(['nurse', 'café', 'police_officer', 'New York', '1', 'x' * 300, 'cook'])
  if form.startswith('word2vec binary'):
    del vectors['New York']  # a space ends the word there
  content = encode(vectors, form)
  path = write(tmp_path, gzip.compress(content, mtime=0) if packed else content)
  found = load_word_vectors(path, ['cook', 'café', 'police officer', 'Nurse', 'judge'])
  assert found.format == form.replace(' with line feeds', '')
  assert found.words_in_file == len(vectors)
  assert found.spelled == {'cook': 'cook', 'café': 'café', 'police officer': 'police_officer',
                           'Nurse': 'nurse'}
  for asked, name in found.spelled.items():
    vector = vectors[name].astype(np.float64)
    np.testing.assert_allclose(found.unit(asked), vector / np.linalg.norm(vector), atol=1e-7)
  assert 'judge' not in found and len(found.units) == 4


def test_forms_are_told_apart_where_they_look_alike(tmp_path):
  for width in (2, 3, 300):
    for seed, scale in enumerate((1.0, 1e-3, 1e4)):
      vectors = {w: v * np.float32(scale) for w, v in
                 table(['a', 'b'], width=width, seed=seed).items()}
      for form in ('word2vec binary', 'word2vec text', 'GloVe text'):
        path = write(tmp_path, encode(vectors, form))
        assert load_word_vectors(path, ['a', 'b']).format == form, (width, scale)


def test_only_wanted_words_are_held(tmp_path):
  """Unwanted rows may hold anything of their width; they cost no memory and raise nothing."""
  vectors = table([f'w{i}' for i in range(5000)])
  vectors['w17'][2] = np.nan
  for form in FORMS:
    path = write(tmp_path, encode(vectors, form))
    found = load_word_vectors(path, ['w4999'])
    assert found.units.shape == (1, WIDTH) and found.words_in_file == 5000
    with pytest.raises(UserError, match="'w17' has only zeros, or a number that is not finite"):
      load_word_vectors(path, ['w17'])


def test_spellings_prefer_the_given_one(tmp_path):
  vectors = table(['Mary', 'mary', 'sales_manager', 'manager'])
  path = write(tmp_path, encode(vectors, 'word2vec text'))
  assert load_word_vectors(path, ['Mary']).spelled == {'Mary': 'Mary'}
  asked = ['sales-manager', 'account manager']
  assert load_word_vectors(path, asked).spelled == {'sales-manager': 'sales_manager'}
  found = load_word_vectors(path, asked, multi_word='head')
  assert found.spelled == {'sales-manager': 'sales_manager', 'account manager': 'manager'}
  assert spellings('cook', 'head') == ['cook']


GOOD = table(['nurse', 'cook', 'judge', 'actor'])
TEXT, BINARY, GLOVE = (encode(GOOD, f) for f in ('word2vec text', 'word2vec binary', 'GloVe text'))
LINES = TEXT.split(b'\n')


@pytest.mark.parametrize(('content', 'message'), [
  (b'', ':1: neither'), (b'0 6\n', ':1: 0 words of width 6'), (b'3 99999999\n', 'width from 1 to'),
  (TEXT[:-1], ':5: the last line does not end'),
  (b'\n'.join(LINES[:4]) + b'\n', 'promises 4 words, it holds 3'),
  (TEXT.replace(LINES[3], LINES[3] + b' 0.5'), ':4: not a word and 6 numbers'),
  (GLOVE.replace(b'judge ', b'judge'), ':3: not a word and 6 numbers'),
  (TEXT.replace(b'cook', b'nurse'), ":3: the word 'nurse' occurs twice"),
  (TEXT.replace(LINES[2].split()[3], b'0.1.2'), ":3: 'cook' has something that is no number"),
  (TEXT.replace(LINES[2].split()[3], b'inf'), ":3: 'cook' has only zeros, or"),
  (TEXT.replace(LINES[2], b'cook' + b' 0' * WIDTH), ":3: 'cook' has only zeros, or"),
  (BINARY[:-1], 'byte 93: the file is truncated here'),
  (BINARY + b'x', 'after the last of 4 words'), (BINARY.replace(b'4 6\n', b'4 5\n'), ', byte '),
  (gzip.compress(TEXT, mtime=0)[:-9], 'the gzip file ends here'),
])
def test_damaged_files_are_refused_with_their_place(tmp_path, content, message):
  path = write(tmp_path, content)
  with pytest.raises(UserError) as error:
    load_word_vectors(path, ['nurse', 'cook', 'judge', 'actor'])
  assert message in str(error.value) and str(path) in str(error.value)


def test_every_cut_of_a_file_is_seen(tmp_path):
  for content in (TEXT, BINARY, gzip.compress(BINARY, mtime=0), gzip.compress(GLOVE)):
    for length in range(len(content)):
      with pytest.raises(UserError):
        load_word_vectors(write(tmp_path, content[:length]), GOOD)


# The gender direction.

PAIRS = [(f'f{i}', f'm{i}') for i in range(7)]


def planted(direction, *, noise, seed=1, width=20):
  """Pairs that differ along a direction and by noise."""
  rng = np.random.default_rng(seed)
  found = {}
  for f, m in PAIRS:
    centre, step = rng.standard_normal(width), rng.uniform(0.5, 1.5)
    for word, sign in ((f, 1), (m, -1)):
      found[word] = centre + sign * step * direction + noise * rng.standard_normal(width)
  return found


def load(tmp_path, vectors, words=None):
  return load_word_vectors(write(tmp_path, encode(vectors, 'word2vec text')), words or vectors)


def test_components_are_those_of_a_covariance_built_otherwise(tmp_path):
  """The oracle: eigenvectors of the mean outer product of the centred words, by numpy.linalg."""
  rng = np.random.default_rng(3)
  vectors = {w: rng.standard_normal(20) for pair in PAIRS for w in pair}
  loaded = load(tmp_path, vectors)
  space = gender_subspace(loaded, PAIRS)
  covariance = np.zeros((20, 20))
  for f, m in PAIRS:
    centre = (loaded.unit(f) + loaded.unit(m)) / 2
    for word in (f, m):
      centred = loaded.unit(word) - centre
      covariance += np.outer(centred, centred) / (2 * len(PAIRS))
  values, components = np.linalg.eigh(covariance)
  assert abs(components[:, -1] @ space.direction) == pytest.approx(1, abs=1e-6)
  np.testing.assert_allclose(space.explained, values[::-1][:7] / values.sum(), atol=1e-9)
  assert space.explained.sum() == pytest.approx(1) and (np.diff(space.explained) <= 0).all()
  assert np.linalg.norm(space.direction) == pytest.approx(1)


def test_a_planted_direction_is_found_with_its_sign(tmp_path):
  direction = np.random.default_rng(5).standard_normal(20)
  direction /= np.linalg.norm(direction)
  exact = gender_subspace(load(tmp_path, planted(direction, noise=0.0)), PAIRS)
  assert exact.direction @ direction > 0.9 and exact.agreeing == 7
  for seed in range(5):  # the sign hangs on the pairs, not on what the solver returns
    loaded = load(tmp_path, planted(direction, noise=0.3, seed=seed))
    space = gender_subspace(loaded, PAIRS)
    swapped = gender_subspace(loaded, [(m, f) for f, m in PAIRS])
    np.testing.assert_allclose(space.direction, -swapped.direction, atol=1e-12)
    gaps = [(loaded.unit(f) - loaded.unit(m)) @ space.direction for f, m in PAIRS]
    assert np.mean(gaps) > 0


def test_missing_pairs_are_listed_and_pairs_without_direction_refused(tmp_path):
  vectors = planted(np.eye(20)[0], noise=0.1)
  del vectors['m3'], vectors['f5'], vectors['m5']
  loaded = load(tmp_path, vectors, [w for p in PAIRS for w in p])
  space = gender_subspace(loaded, PAIRS)
  assert space.missing == (('f3', 'm3', ('m3',)), ('f5', 'm5', ('f5', 'm5')))
  assert [p for p in PAIRS if p not in space.pairs] == [PAIRS[3], PAIRS[5]]
  one, other = np.array([1.0, 0]), np.array([-1.0, 0])
  for vectors, words in (
      ({'f0': one}, 'none of the 2 definitional'), ({'f0': one, 'm0': one}, 'have one vector'),
      ({'f0': one, 'm0': other, 'f1': other, 'm1': one}, 'do not agree')):
    with pytest.raises(UserError, match=words):
      gender_subspace(load(tmp_path, vectors, [w for p in PAIRS for w in p]), PAIRS[:2])


def test_pairs_with_the_male_word_first_are_refused(tmp_path):
  """All signs would be turned, and nothing in the tables would show it."""
  direction = np.eye(20)[0]
  vectors = planted(direction, noise=0.02) | {
    'she': np.ones(20) + direction, 'he': np.ones(20) - direction, 'nurse': np.ones(20)}
  embedding = write(tmp_path, encode(vectors, 'word2vec text'))
  female_first, male_first = (
    write(tmp_path, '\n'.join(' '.join(p[::order]) for p in PAIRS).encode(), f'pairs{order}')
    for order in (1, -1))
  assert load_embedding(embedding, pairs=female_first).subspace.agreeing == 7
  with pytest.raises(UserError, match='write the female word of each pair first'):
    load_embedding(embedding, pairs=male_first)


# Hard debiasing.

def test_defining_properties_of_hard_debiasing(tmp_path):
  rng = np.random.default_rng(8)
  words = [w for p in PAIRS for w in p] + [f'n{i}' for i in range(30)] + ['her own']
  vectors = {w.replace(' ', '_'): rng.standard_normal(20) for w in words}
  loaded = load(tmp_path, vectors, words)
  g = gender_subspace(loaded, PAIRS).direction
  result = hard_debias(loaded, g, specific=['Her_Own'], pairs=PAIRS[:4])
  assert result.is_specific('her own') and result.is_specific('f0') and not result.is_specific('f5')
  after = result.vectors
  assert np.linalg.norm(after.units, axis=1) == pytest.approx(1)
  np.testing.assert_array_equal(after.unit('her own'), loaded.unit('her own'))
  neutral = [w for w in words if not result.is_specific(w)]
  assert len(neutral) == 36
  for word in neutral:
    assert abs(after.unit(word) @ g) < 1e-15
    off = loaded.unit(word) - (loaded.unit(word) @ g) * g
    np.testing.assert_allclose(after.unit(word), off / np.linalg.norm(off), atol=1e-12)
  for f, m in result.equalised:
    assert after.unit(f) @ g == pytest.approx(-(after.unit(m) @ g))
    middle = (loaded.unit(f) + loaded.unit(m)) / 2
    shared = middle - (middle @ g) * g
    assert after.unit(f) @ g == pytest.approx(
      np.sign((loaded.unit(f) - loaded.unit(m)) @ g) * np.sqrt(1 - shared @ shared))
    for word in neutral:  # equally far from both
      assert np.linalg.norm(after.unit(word) - after.unit(f)) == pytest.approx(
        np.linalg.norm(after.unit(word) - after.unit(m)))
  assert result.equalised == tuple(PAIRS[:4]) and not result.skipped


def test_pairs_that_cannot_be_equalised_are_listed(tmp_path):
  vectors = table(['dad', 'mom', 'her', 'him', 'aunt', 'uncle'])
  vectors['uncle'] = vectors['aunt']
  loaded = load(tmp_path, vectors, [*vectors, 'Dad', 'Mom', 'gal'])
  result = hard_debias(loaded, np.eye(WIDTH)[0], specific=[], pairs=[
    ('mom', 'dad'), ('Mom', 'Dad'), ('Dad', 'dad'), ('gal', 'him'), ('aunt', 'uncle')])
  assert [reason for _, _, reason in result.skipped] == [
    "'mom' is in an earlier pair", "both are 'dad' in the file", 'not in the file: gal',
    'both lie equally far along g']
  assert result.equalised == (('mom', 'dad'),)


def test_degenerate_vectors():
  g = np.array([1.0, 0, 0])
  assert neutralise(np.array([[-1.0, 0, 0]]), g).tolist() == [[0, 0, 0]]
  assert equalise(np.array([0.6, 0.8, 0]), np.array([0.6, 0, 0.8]), g) is None
  first, second = equalise(g, -g, g)
  assert first.tolist() == [1, 0, 0] and second.tolist() == [-1, 0, 0]


# Lists.

def test_lists_as_json_and_as_lines(tmp_path):
  lines = write(tmp_path, '\ufeff# head\nshe he\n\nMary\tJohn\n'.encode())
  assert read_pairs(lines, 'pairs') == [('she', 'he'), ('Mary', 'John')]
  as_json = write(tmp_path, json.dumps([['she', 'he'], ['Mary', 'John']]).encode(), 'p.json')
  assert read_pairs(as_json, 'pairs') == read_pairs(lines, 'pairs')
  assert read_words(write(tmp_path, b'["a", "b", "a"]'), 'words') == ['a', 'b']


@pytest.mark.parametrize(('content', 'message'), [
  (b'# only\n', 'the list is empty'), (b'[1', 'not a JSON array'),
  (b'she he it\n', ':1: .* is no pair'), (b'a b\nc c\n', ":2: 'c' is paired with itself"),
  (b'a b\nb a\n', ':2: .* is given twice'), (b'[["a", 1]]', 'entry 1: .* is no pair')])
def test_bad_pairs(tmp_path, content, message):
  with pytest.raises(UserError, match=message):
    read_pairs(write(tmp_path, content), 'pairs')


def test_the_default_pairs_are_those_of_bolukbasi(test_data):
  path = test_data / 'bias' / 'debiaswe' / 'definitional_pairs.json'
  if not path.is_file():
    pytest.skip(f'no bias/debiaswe in {test_data}')
  named = [pair for pair, marks in built_in_pairs().items() if 'definitional' in marks]
  assert sorted(named) == sorted(read_pairs(path, 'pairs'))


# Real embeddings.

@pytest.mark.parametrize(('name', 'kind', 'words', 'found', 'cosine', 'share'), [
  ('glove_6B_50d_subset', 'GloVe text', 4137, 71, 0.885, 0.778),
  ('googlenews_w2v_300d_subset', 'word2vec text', 13784, 120, 0.613, 0.645)])
def test_real_embeddings(test_data, name, kind, words, found, cosine, share):
  """Counts and cos(he, she) are those that the data's own notes state."""
  path, lists = test_data / 'embeddings' / f'{name}.txt.gz', test_data / 'bias' / 'debiaswe'
  if not (path.is_file() and lists.is_dir()):
    pytest.skip(f'no embeddings/{name}.txt.gz or bias/debiaswe in {test_data}')
  embedding = load_embedding(
    path, professions=read_professions(lists / 'professions.json'),
    pairs=lists / 'definitional_pairs.json', equalize=lists / 'equalize_pairs.json',
    specific=lists / 'gender_specific_full.json')
  result = embedding.to_dict()
  assert (result['format'], result['words_in_file']) == (kind, words)
  assert result['professions']['found'] == found
  assert result['cosine_he_she'] == pytest.approx(cosine, abs=5e-4)
  assert result['subspace']['explained_variance'][0] == pytest.approx(share, abs=1e-3)
  assert [m['pair'] for m in result['subspace']['pairs_missing']] == [['gal', 'guy']]
  before, after = embedding.biases(), embedding.biases(debiased=True)
  assert before['nurse'] > 0.25 and before['actress'] > 0.3
  assert min(before.values()) < -0.2
  assert after['nurse'] == 0 != after['actress']
  neutral = result['summary']['neutral']['bias_debiased']
  assert max(abs(neutral['min']), abs(neutral['max'])) < 1e-15
  correlation = result['summary']['stereotype_correlation']
  assert correlation['low'] > 0.25

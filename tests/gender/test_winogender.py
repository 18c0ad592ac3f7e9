"""WinoGender: the authors' sentences, what is made of scores, and the probe on states."""

import pathlib
import re

import numpy as np
import pytest
from scipy import stats

from fairjax.errors import UserError
from fairjax.gender import winogender
from fairjax.gender.persons import Professions
from fairjax.gender.scored_models import TokenFeatures, open_language_model
from fairjax.gender.winogender import (
  likelihood,
  probe_winogender,
  pronoun_shares,
  read_mention_pairs,
  read_winogender,
  recorded,
  summarise,
  summarise_pronouns,
  train_probe,
)

pytestmark = pytest.mark.usefixtures('one_device')

TEMPLATES = (
  'occupation(0)\tother-participant(1)\tanswer\tsentence\n'
  'smith\tcaller\t0\tThe $OCCUPATION told a $PARTICIPANT that $NOM_PRONOUN was late.\n'
  'smith\tcaller\t1\tThe $PARTICIPANT asked the $OCCUPATION about $POSS_PRONOUN bill.\n'
  'weaver\tbuyer\t0\tThe $OCCUPATION met the $PARTICIPANT before $NOM_PRONOUN left.\n'
  'weaver\tbuyer\t1\tThe $OCCUPATION met the $PARTICIPANT to show $ACC_PRONOUN cloth.\n'
  'singer\tfan\t0\tThe $OCCUPATION met the $PARTICIPANT before $NOM_PRONOUN left.\n'
  'singer\tfan\t1\tThe $OCCUPATION met the $PARTICIPANT to show $ACC_PRONOUN cloth.\n')
SHARES = Professions(('smith', 'weaver', 'singer', 'pilot'), np.array([0.1, 0.6, 0.9, 0.2]), (), '')


@pytest.fixture(scope='module')
def sentences(tmp_path_factory):
  path = tmp_path_factory.mktemp('winogender') / 'templates.tsv'
  path.write_text(TEMPLATES)
  return read_winogender(path)


class Talker:
  """Weighs candidates by a rule; the states of a token are the one-hot of its word."""

  kind, name, fingerprint, max_length = 'causal', 'talker', '0', 99
  fill = features = None
  words: dict[str, int]

  def __init__(self, rule=None):
    self.rule, self.words = rule, {}

  def candidate_log_probs(self, texts, candidates):
    return [np.array([self.rule(t, w) for w in own])
            for t, own in zip(texts, candidates, strict=True)]

  def piece_counts(self, words):
    return [1] * len(words)

  def token_features(self, texts):
    found = []
    for text in texts:
      pieces = list(re.finditer(r'\w+', text))
      hidden = np.stack([np.random.default_rng(
        [self.words.setdefault(m[0].lower(), len(self.words)), 3]).normal(size=16)
        for m in pieces])
      found.append(TokenFeatures(hidden, np.array([m.span() for m in pieces])))
    return found


def test_sentences_and_their_spans(sentences):
  assert len(sentences) == 6 * 2 * 3
  by_id = {s.sentid: s for s in sentences}
  assert by_id['smith.someone.0.female.txt'].text == 'The smith told someone that she was late.'
  assert by_id['smith.someone.1.male.txt'].text == 'Someone asked the smith about his bill.'
  assert by_id['smith.caller.1.neutral.txt'].text == 'The caller asked the smith about their bill.'
  for s in sentences:
    words = {role: s.text[a:b] for role, (a, b) in s.spans.items()}
    assert words['occupation'] == s.occupation
    assert words['participant'].lower() == s.participant
    assert words['pronoun'] in ('he', 'his', 'him', 'she', 'her', 'they', 'their', 'them')


def test_sentences_are_the_authors(test_data):
  folder = test_data / 'bias' / 'winogender'
  lines = (folder / 'all_sentences.tsv').read_text().splitlines()[1:]
  ours = {s.sentid: s.text for s in read_winogender(folder)}
  assert ours == dict(line.split('\t') for line in lines) and len(ours) == 720


def test_likelihood_weighs_the_two_in_the_follow_up(sentences):
  seen = []

  def rule(text, word):
    seen.append((text, word))
    return {'smith': 1.0, 'else': -1.0}.get(word.split()[-1], 0.0)

  found = likelihood(Talker(rule), sentences)
  for s, p in zip(sentences, found, strict=True):
    gap = {'smith': 1.0}.get(s.occupation, 0.0) - (-1.0 if s.form == 'someone' else 0.0)
    assert p == pytest.approx(1 / (1 + np.exp(-gap)))
  assert (f'{sentences[0].text} He is [BLANK].', 'the smith') in seen
  they = next(s for s in sentences if s.gender == 'neutral')
  assert any(t == f'{they.text} They are [BLANK].' for t, _ in seen)


def test_pronouns_of_the_occupation_are_weighed_in_their_place(sentences):
  seen = []
  lean = {'smith': -1.0, 'weaver': 0.5, 'singer': 2.0}

  def rule(text, word):
    seen.append((text, word))
    own = next(v for k, v in lean.items() if k in text)
    return own * {'she': 1, 'her': 1, 'he': -1, 'his': -1, 'him': -1}[word]

  found = pronoun_shares(Talker(rule), sentences)
  assert found == pytest.approx({k: 1 / (1 + np.exp(-2 * v)) for k, v in lean.items()})
  assert ('The smith told a caller that [BLANK] was late.', 'she') in seen
  assert not any('asked the smith' in text for text, _ in seen)  # there it means the other one
  shares = SHARES.shares[:3]
  summary = summarise_pronouns(found, SHARES)
  oracle = stats.linregress(shares, list(found.values()))
  assert summary['r_pronoun']['value'] == pytest.approx(oracle.rvalue)
  assert summary['slope_pronoun']['value'] == pytest.approx(oracle.slope)
  assert summary['r_pronoun']['n'] == 3


def test_plain_shares_are_those_of_she():
  """She three times of four after "nurse", never otherwise."""
  weights = {(True, 'she'): 0.3, (True, 'he'): 0.1, (False, 'she'): 1e-30, (False, 'he'): 0.2}
  talker = Talker(lambda text, word: np.log(weights['nurse' in text, word]))
  np.testing.assert_allclose(
    winogender.plain_shares(talker, ['smith', 'nurse']), [0, 0.75], atol=1e-12)


def test_pronouns_in_pieces_are_not_compared(repository):
  model = open_language_model(repository / 'tests/golden/pretrained/bert_mlm')
  with pytest.raises(UserError, match="'she' is not one piece"):
    winogender.plain_shares(model, ['nurse'])


def test_summary_is_scipys(sentences):
  random = np.random.default_rng(0)
  probability = random.uniform(size=len(sentences))
  found = summarise(sentences, probability, SHARES)

  def mean(name, gender):
    return np.mean([p for s, p in zip(sentences, probability, strict=True)
                    if s.occupation == name and s.gender == gender])

  names, shares = SHARES.names[:3], SHARES.shares[:3]
  she, he = ([mean(n, g) for n in names] for g in ('female', 'male'))
  assert found['r']['value'] == pytest.approx(stats.pearsonr(she, shares).statistic)
  difference = np.subtract(she, he)
  assert found['r_she_minus_he']['value'] == pytest.approx(
    stats.pearsonr(difference, shares).statistic)
  assert found['slope_she_minus_he']['value'] == pytest.approx(
    stats.linregress(shares, difference).slope)
  assert found['r']['n'] == 3 and found['without_share'] == []
  right = [(p > 0.5) == (s.answer == 0) for s, p in zip(sentences, probability, strict=True)]
  assert found['accuracy'] == {'value': np.mean(right), 'n': 36}
  assert found['f1']['value'] == pytest.approx(
    2 * sum((p > 0.5) and s.answer == 0 for s, p in zip(sentences, probability, strict=True))
    / (sum(probability > 0.5) + 18))
  assert found['by_form']['someone']['r']['value'] != found['r']['value']


def test_occupations_without_a_share_are_named(sentences):
  few = Professions(('smith', 'weaver', 'singer'), np.array([0.1, 0.6, 0.9]), (), '')
  more = [*sentences, *(
    s.__class__(**{**s.__dict__, 'occupation': 'bard'}) for s in sentences[:6])]
  found = summarise(more, np.linspace(0, 1, len(more)), few)
  assert found['without_share'] == ['bard'] and found['r']['n'] == 3
  with pytest.raises(UserError, match='2 occupations'):
    summarise(sentences, np.zeros(36), Professions(('smith', 'singer'), few.shares[:2], (), ''))


def test_recorded_scores(sentences, tmp_path):
  path = tmp_path / 'scores.tsv'
  values = np.linspace(0, 1, len(sentences))
  rows = [f'{s.sentid}\t{v}' for s, v in zip(sentences, values, strict=True)]
  path.write_text('\n'.join(['sentid\tprobability', *reversed(rows)]) + '\n')
  np.testing.assert_array_equal(recorded(path, sentences), values)
  for lines, words in (
      (rows[1:], '1 of 36 sentences have no probability'), ([*rows, rows[0]], 'is given twice'),
      ([*rows, 'x.txt\t0.5'], "no sentence is called 'x.txt'"), (['a\t2'], 'not sentid<TAB>')):
    path.write_text('\n'.join(lines))
    with pytest.raises(UserError, match=words):
      recorded(path, sentences)


@pytest.mark.parametrize(('line', 'words'), [
  ('smith\tcaller\t2\tThe $OCCUPATION saw the $PARTICIPANT and $NOM_PRONOUN left.', ':2: not occ'),
  ('smith\tcaller\t0\tThe $OCCUPATION saw the caller and $NOM_PRONOUN left.', 'each once'),
  ('smith\tcaller\t0\tThe $OCCUPATION saw the $PARTICIPANT and left.', 'each once'),
  ('smith\tcaller\t0', ':2: 3 cells'),
  ('', 'holds no row'),
])
def test_bad_templates(tmp_path, line, words):
  path = tmp_path / 'templates.tsv'
  path.write_text(f'{TEMPLATES.partition(chr(10))[0]}\n{line}\n')
  with pytest.raises(UserError, match=words):
    read_winogender(path)


def winobias(folder: pathlib.Path):
  lines = ['1 [The smith] met the weaver because [he] was late.',
           '2 The smith met [the weaver] because [she] was free.',
           '3 [The weaver] called the smith and [her] friend.']
  for name in ('pro_stereotyped_type1', 'anti_stereotyped_type1'):
    for split in ('dev', 'test'):
      (folder / f'{name}.txt.{split}').write_text('\n'.join(lines) + '\n')


def test_pairs_of_winobias(tmp_path):
  winobias(tmp_path)
  pairs = read_mention_pairs(tmp_path, 'train')
  found = {(p.text[slice(*p.mention)], p.text[slice(*p.antecedent)], p.same) for p in pairs}
  assert found == {
    ('he', 'The smith', True), ('he', 'the weaver', False), ('she', 'the weaver', True),
    ('she', 'The smith', False), ('her', 'The weaver', True), ('her', 'the smith', False)}
  assert '[' not in ''.join(p.text for p in pairs) and len(pairs) == 12


def test_real_winobias_has_one_other_person_each(test_data):
  pairs = read_mention_pairs(test_data / 'bias' / 'winobias', 'test')
  same = sum(p.same for p in pairs)
  assert same == 4 * 396 and 0.95 < (len(pairs) - same) / same < 1.1


def test_pairs_of_ontonotes(tmp_path):
  rows = [('The', '(1'), ('smith', '1)'), ('and', '-'), ('his', '(1)|(2'), ('dog', '2)'),
          ('slept', '-')]
  folder = tmp_path / 'train' / 'english'
  folder.mkdir(parents=True)
  (tmp_path / 'train' / 'chinese').mkdir()
  (tmp_path / 'train' / 'chinese' / 'a.v4_gold_conll').write_text('a 0 0 x X (1)|(2)|(3)\n')
  (folder / 'a.v4_gold_conll').write_text(
    '#begin document (a); part 000\n'
    + ''.join(f'a 0 {i} {w} X {c}\n' for i, (w, c) in enumerate(rows)) + '\n#end document\n')
  found = {(p.text[slice(*p.mention)], p.text[slice(*p.antecedent)], p.same)
           for p in read_mention_pairs(tmp_path, 'train')}
  # The later one first, as in WinoBias and WinoGender: a probe tells the two apart.
  assert found == {('his', 'The smith', True), ('his dog', 'The smith', False),
                   ('his dog', 'his', False)}
  # The release has the same documents with automatic columns too: they are not read twice.
  (folder / 'a.v4_auto_conll').write_text((folder / 'a.v4_gold_conll').read_text())
  assert len(read_mention_pairs(tmp_path, 'train')) == 3
  (folder / 'a.v4_gold_conll').write_text('a 0 0 he X (1)\n' * 22 + '\n' + 'a 0 0 she X (1)|(2)\n')
  assert len(read_mention_pairs(tmp_path, 'train')) == 22 * 21 / 2 + 1
  with pytest.raises(UserError, match='test'):
    read_mention_pairs(tmp_path, 'test')
  (folder / 'a.v4_gold_conll').write_text('a 0 0 The X (1\na 0 1 end X -\n\n')
  with pytest.raises(UserError, match='never closed'):
    read_mention_pairs(tmp_path, 'train')


def test_the_probe_learns_what_can_be_learned_and_nothing_else():
  random = np.random.default_rng(0)
  a, b = random.normal(size=(2, 1200, 4)).astype(np.float32)
  features = np.concatenate([a, b, a * b], axis=1)
  same = (a * b).sum(axis=1) > 0
  probe = train_probe(features[:1000], same[:1000], seed=0)
  assert ((probe(features[1000:]) > 0.5) == same[1000:]).mean() > 0.9
  again = train_probe(features[:1000], same[:1000], seed=0)
  np.testing.assert_array_equal(again(features), probe(features))
  other = train_probe(features[:1000], same[:1000], seed=1)
  assert np.abs(other(features) - probe(features)).max() > 1e-3
  noise = random.permutation(same)
  blind = train_probe(features[:1000], noise[:1000], seed=0)
  assert ((blind(features[1000:]) > 0.5) == noise[1000:]).mean() < 0.65


def test_the_probe_answers_for_every_sentence_and_seed(sentences, tmp_path, monkeypatch):
  """About mentions with their article: other spans have states that it has never seen."""
  winobias(tmp_path)
  own, asked = winogender.pair_features, []

  def features(model, texts, spans):
    asked.append([text[slice(*second)] for text, (_, second) in zip(texts, spans, strict=True)])
    return own(model, texts, spans)

  monkeypatch.setattr(winogender, 'pair_features', features)
  train, test = (read_mention_pairs(tmp_path, split) for split in ('train', 'test'))
  found, quality = probe_winogender(Talker(), train, test, sentences, seeds=(0, 1))
  assert len(found) == 2 and all(p.shape == (36,) and (0 <= p).all() for p in found)
  assert all((p <= 1).all() for p in found)
  # The probe knows that "he" is the smith and "she" the weaver: all that these pairs teach.
  assert [q['n'] for q in quality] == [12, 12] and quality[0]['f1'] > 0.9

  assert {m.partition(' ')[0].lower() for mentions in asked for m in mentions} == {'the'}
  assert asked[2] == [f'{"The" if s.text.startswith("The " + s.occupation) else "the"} '
                      f'{s.occupation}' for s in sentences]

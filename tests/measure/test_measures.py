"""Records to measures: checks, relevance, perplexity and the whole dictionary."""

import dataclasses
import json
import math

import numpy as np
import pytest
from record_cases import records_of, write_lines

from fairjax.cli.main import main
from fairjax.counterfactual.attributes import Attribute, Template, Value, load_attribute
from fairjax.errors import UserError
from fairjax.measure import (
  OpinionScorer,
  RecordedScorer,
  measure_fairness,
  measure_records,
  mentions,
  perplexities,
  read_generations,
  score_texts,
  semantic_similarity_c,
)
from fairjax.measure.columns import read_attributes


@pytest.fixture
def attribute():
  values = [('Red', 'warm'), ('Blue', 'cold'), ('Sea Green', 'cold'), ('Rose', 'warm')]
  return Attribute(
    name='colour', values=tuple(Value(t, s, (t,), 'a') for t, s in values),
    templates=(Template('{value} is', '1'), Template('I saw {value} and', '2')),
    template_subsets={'second': (1,)})


def make_records(attribute, *, samples=20, bias=0.0, numbered=True):
  """Continuations with one opinion word; the first value is positive more often by `bias`."""
  rng = np.random.default_rng(0)
  records = []
  for t in range(len(attribute.templates)):
    for sample in range(samples):
      noise = rng.random()
      for a, value in enumerate(attribute.values):
        word = 'good' if noise < 0.5 + bias * (a == 0) else 'bad'
        mention = f', says {value.text}' if sample % 2 else ''
        records.append({
          'attribute': attribute.name, 'value': value.text, 'subgroup': value.subgroup,
          'template': t, 'prefix': attribute.prefix(t, a), 'model': 'm',
          'continuation': f'{word} {sample}{mention}.', 'scores': {'s': float(word == 'good')},
          '_where': f'r.jsonl:{len(records) + 1}'})
        if numbered:
          records[-1]['sample'] = sample
  return records


SCORER = OpinionScorer(['good'], ['bad'])


def test_whole_dictionary(attribute, check_keys, tmp_path):
  records = make_records(attribute, bias=0.3)
  result = measure_records(records, attribute, [SCORER], permutations=30,
                           scores_directory=tmp_path / 'm')
  assert json.loads(json.dumps(result, allow_nan=False)) == result
  check_keys(result, 'measures')
  assert (tmp_path / 'm' / 'colour.opinion.jsonl').exists()
  assert result['n'] == {'min': 20, 'max': 20} and result['records'] == 160 and result['coupled']
  assert result['templates_not_in_records'] == []
  measures = result['scorers']['opinion']
  share = measures['mean_score_by_value']
  # One of the four values differs by d: 3 of 6 pairs differ by d.
  d = share['Red'] - share['Blue']
  assert d > 0.1
  individual = measures['individual_fairness']
  assert individual['value'] == pytest.approx(d / 2, abs=1e-12)
  assert individual['p_value'] < 0.05 and individual['definition'] == 'H-05, Eq. 3'
  # Red and Rose together against everything: |(share of warm) - (share of all)|, twice.
  warm, everything = (share['Red'] + share['Rose']) / 2, np.mean(list(share.values()))
  cold = (share['Blue'] + share['Sea Green']) / 2
  expected = (abs(warm - everything) + abs(cold - everything)) / 2
  assert measures['group_fairness']['value'] == pytest.approx(expected, abs=1e-12)
  assert measures['individual_fairness_cross_subgroup']['value'] == pytest.approx(d / 2, abs=1e-12)
  assert measures['individual_fairness_within_subgroup']['value'] == pytest.approx(d / 2, abs=1e-12)
  assert measures['largest_pairs'][0]['values'][0] == 'Red'
  assert measures['template_subsets']['second']['templates'] == [1]
  relevance = result['semantic_similarity_c']
  assert relevance['conditioned']['value'] == 0.5 and relevance['conditioned']['n'] == 160


def test_order_of_records_does_not_matter(attribute):
  records = make_records(attribute, bias=0.2)
  shuffled = [records[i] for i in np.random.default_rng(0).permutation(len(records))]
  first, second = (measure_records(r, attribute, [SCORER], permutations=10)
                   for r in (records, iter(shuffled)))
  def rounded(tree):  # means may differ in their last digit
    if isinstance(tree, dict):
      return {k: rounded(v) for k, v in tree.items()}
    if isinstance(tree, list):
      return [rounded(v) for v in tree]
    return round(tree, 12) if isinstance(tree, float) else tree
  assert rounded(first) == rounded(second)


def test_templates_as_strings_and_templates_not_in_records(attribute):
  records = [r | {'template': 'second'} for r in make_records(attribute) if r['template'] == 1]
  result = measure_records(records, attribute, [SCORER], permutations=2)
  assert result['templates'] == ['second']
  assert result['templates_not_in_records'] == ['{value} is']
  assert list(result['scorers']['opinion']['template_subsets']) == ['second']
  held_out = [r | {'prefix': 'Elsewhere, ' + r['prefix']} for r in make_records(attribute)]
  result = measure_records(held_out, attribute, [SCORER], permutations=2)
  assert len(result['templates_not_in_records']) == 2
  assert result['scorers']['opinion']['template_subsets'] == {}


def test_recorded_scores_are_measured(attribute):
  records = [r | {'scores': {'own': 0.75 if r['value'] == 'Red' else 0.25}}
             for r in make_records(attribute)]
  result = measure_records(records, attribute, [RecordedScorer(), SCORER], permutations=5)
  measures = result['scorers']['recorded']
  assert measures['individual_fairness']['value'] == pytest.approx(0.25, abs=1e-12)
  assert set(result['scorers']) == {'recorded', 'opinion'}
  records[7]['scores'] = {'own': 2}
  with pytest.raises(UserError, match=r'r\.jsonl:8: score'):
    measure_records(records, attribute, [RecordedScorer()])


@pytest.mark.parametrize('change, message', [
  ({'value': 'Bleu'}, r"value of attribute colour 'Bleu' in r\.jsonl:6: did you mean 'Blue'"),
  ({'attribute': 'color'}, r"r\.jsonl:6: attribute is 'color', not 'colour'"),
  ({'continuation': None}, r'r\.jsonl:6: this continuation is empty, as are 1 of 160: Blue 1 of'),
  ({'sample': None}, r"r\.jsonl:6: field 'sample' is missing where other records have it"),
  ({'subgroup': 'warm'}, r"r\.jsonl:6: subgroup of 'Blue' is 'warm', but 'cold'"),
  ({'model': 'other'}, r"r\.jsonl:6: model is 'other' where earlier records have 'm'"),
  ({'sample': 0}, r"r\.jsonl:6: sample 0 of template 0 and value 'Blue' occurs twice"),
])
def test_bad_records_are_named(attribute, change, message):
  records = make_records(attribute)
  records[5] = records[5] | change
  with pytest.raises(UserError, match=message):
    read_generations(records, attribute)
  del records[2]['prefix']
  with pytest.raises(UserError, match=r'r\.jsonl:3: fields missing: prefix'):
    read_generations(records, attribute)


@pytest.mark.parametrize(('first', 'second'), [
  ({'model': 'other'}, {'value': 'Bleu'}), ({'attribute': 'color'}, {'value': 'Bleu'}),
  ({'value': 'Bleu'}, {'template': 1.5}), ({'arm': 'rewording'}, {'value': 'Bleu'})])
def test_of_several_bad_records_the_first_is_named(attribute, first, second):
  records = make_records(attribute)
  records[3] = records[3] | first
  records[9] = records[9] | second
  with pytest.raises(UserError, match=r'r\.jsonl:4'):
    read_generations(records, attribute)


def test_records_may_come_in_one_mapping_that_is_filled_again(attribute):
  def given():
    record = {}
    for r in make_records(attribute):
      record.clear()
      record.update(r)
      yield record
  assert read_generations(given(), attribute).continuations == [
    r['continuation'] for r in make_records(attribute)]


def test_prompts_are_found_in_any_order(attribute):
  records = [r | {'prefix': f"{r['value']}?" if r['template'] or r['sample'] % 2 else r['prefix']}
             for r in make_records(attribute)]
  for given in (records, sorted(records, key=lambda r: r['prefix']), records[::-1]):
    generations, slow = read_generations(given, attribute), {}
    for i, (template, value) in enumerate(zip(
        generations.template_index.tolist(), generations.value_index.tolist(), strict=True)):
      slow.setdefault((template, value, generations.prefixes[i]), i)
    assert generations.prompts() == slow and len(slow) == 12


def test_missing_values_and_templates_are_named(attribute):
  records = make_records(attribute)
  without = [r for r in records if (r['template'], r['value']) != (1, 'Sea Green')
             and r['value'] != 'Rose']
  with pytest.raises(UserError, match='no records of 1 of 6 pairs .*Sea Green in template 1'):
    read_generations(without, attribute)
  country = load_attribute('country')
  few = [r for r in records_of(country, 1) if r['template'] == 0 or r['value'] == 'Syria']
  with pytest.raises(UserError, match='no records of 81 of 100 pairs') as error:
    read_generations(few, country)
  assert len(str(error.value)) < 1000
  with pytest.raises(UserError, match='no records of attribute colour'):
    read_generations([], attribute)


def test_sample_scores_are_arranged_by_template_value_and_number(attribute):
  records = make_records(attribute, samples=3)[::-1]
  generations = read_generations(records, attribute)
  scores = np.array([(r['template'] * 100 + attribute.value_index(r['value']) * 10 + r['sample'])
                     / 1000 for r in records])
  samples = generations.sample_scores(scores)
  assert samples.scores[1][2].tolist() == [0.12, 0.121, 0.122]
  assert samples.coupled and samples.subgroups == ('warm', 'cold', 'cold', 'warm')
  assert measure_fairness(samples, permutations=1).individual.coupled


def test_the_prefix_is_scored_too_where_asked(attribute):
  records, scorer = records_of(attribute, continuation='it'), OpinionScorer(['red'], ['bad'])
  for scored, of_red in (('continuation', 0.5), ('prefix+continuation', 1.0)):
    found = measure_records(records, attribute, [scorer], permutations=1, scored=scored)
    assert found['scored_text'] == scored
    assert found['scorers']['opinion']['mean_score_by_value'] == {
      'Red': of_red, 'Blue': 0.5, 'Sea Green': 0.5, 'Rose': 0.5}


def test_relevance_counts_the_continuation_only_and_the_conditioned_value(attribute):
  records = make_records(attribute, samples=10)
  for record in records:
    record['continuation'] = 'said red and blue' if record['sample'] < 4 else 'said nothing'
  shares = semantic_similarity_c(read_generations(records, attribute))
  assert shares['conditioned']['value'] == pytest.approx(0.4 / 2)
  assert shares['conditioned']['by_value'] == {'Red': 0.4, 'Blue': 0.4, 'Sea Green': 0, 'Rose': 0}
  assert shares['any_value']['value'] == pytest.approx(0.4)
  # All values of a number mention together: 20 independent clusters, not 80 records.
  p, n, z = 0.4, 20, 1.96
  half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
  width = shares['any_value']['high'] - shares['any_value']['low']
  assert width == pytest.approx(2 * half, rel=0.05)


def test_share_interval_is_wilsons_without_numbers(attribute):
  records = make_records(attribute, samples=10, numbered=False)
  for record in records:
    record['continuation'] = 'nothing'
  share = semantic_similarity_c(read_generations(records, attribute))['conditioned']
  assert share['value'] == 0 and share['low'] == 0
  assert share['high'] == pytest.approx(1.96**2 / (80 + 1.96**2), rel=1e-3)


def test_the_mean_of_a_value_is_over_templates(attribute):
  # Red is the better one in both templates, and has most of its samples in the worse one.
  records = [
    {'attribute': 'colour', 'value': value.text, 'template': t, 'prefix': attribute.prefix(t, a),
     'continuation': '', 'scores': {'s': 0.2 + 0.5 * t + 0.1 * (a == 0)}}
    for t in range(2) for a, value in enumerate(attribute.values)
    for _ in range(9 if t == (a != 0) else 2)]
  found = measure_records(records, attribute, ['recorded:s'], permutations=9, empty='keep')
  means = found['scorers']['recorded:s']['mean_score_by_value']
  assert means == pytest.approx({'Red': 0.55, 'Blue': 0.45, 'Sea Green': 0.45, 'Rose': 0.45})


def test_permutations_are_counted_from_one(attribute):
  for wrong, words in (({'permutations': 0}, 'permutations must be at least 1, not 0'),
                       ({'seed': -1}, 'seed must be at least 0, not -1')):
    with pytest.raises(UserError, match=words):
      measure_records(make_records(attribute), attribute, [SCORER], **wrong)


def test_perplexity_units():
  # A uniform model over 8 tokens: 3 bits a token.
  found = perplexities(100 * math.log(8), tokens=100, words=50, num_bytes=300, documents=2)
  assert found == {
    'nll': found['nll'], 'tokens': 100, 'words': 50, 'num_bytes': 300, 'documents': 2,
    'definition': 'H-25', 'direction': 'lower is better', 'token': pytest.approx(8),
    'word': pytest.approx(64), 'bits_per_byte': pytest.approx(1), 'memory_len': None}
  assert perplexities(1e5, tokens=1, words=1, num_bytes=1)['word'] is None
  for bad in (-1.0, math.nan):
    with pytest.raises(ValueError):
      perplexities(bad, tokens=1, words=1, num_bytes=1)


def test_an_interrupted_measurement_goes_on_with_the_next_scorer(attribute, tmp_path, monkeypatch):
  from fairjax.measure import measures as module
  records = make_records(attribute)
  parts, calls = tmp_path / 'parts.jsonl', []
  compute = module.measure_fairness

  def counted(samples, **kwargs):
    calls.append(1)
    if len(calls) == 2:
      raise KeyboardInterrupt
    return compute(samples, **kwargs)

  scorers = [RecordedScorer('a'), RecordedScorer('b')]
  for i, record in enumerate(records):
    record['scores'] = {'a': i % 7 / 7, 'b': i % 5 / 5}
  expected = measure_records(records, attribute, scorers, permutations=9)
  monkeypatch.setattr(module, 'measure_fairness', counted)
  with pytest.raises(KeyboardInterrupt):
    measure_records(records, attribute, scorers, permutations=9, parts=parts)
  with open(parts, 'ab') as file:
    file.write(b'{"crc32": "00')  # a second interruption, within a line
  found = measure_records(records, attribute, scorers, permutations=9, parts=parts)
  assert len(calls) == 3 and json.loads(json.dumps(expected)) == json.loads(json.dumps(found))
  measure_records(records, attribute, scorers, permutations=9, parts=parts)
  assert len(calls) == 3
  measure_records(records, attribute, scorers, permutations=10, parts=parts)  # other work
  records[0]['scores']['a'] += 0.01
  measure_records(records, attribute, scorers, permutations=9, parts=parts)
  assert len(calls) == 3 + 2 + 1


@pytest.mark.parametrize('together', [1, 7, 10_000])
def test_mentions_is_the_plain_search_of_its_pattern(monkeypatch, together):
  """The quick look for plain words drops nothing, whatever the letters."""
  monkeypatch.setattr('fairjax.measure.relevance._TOGETHER', together)
  from fairjax.measure.relevance import mention_pattern
  values = [*load_attribute('occupation').values, *load_attribute('country').values]
  random = np.random.default_rng(0)
  words = ['baker', 'BAKERY', 'Sea', 'teacher', "baker's", 'ba\u212aer', 'te\u0131', 'Iran',
           'iran.', 'k\u00f6ln', 'writer', 'x', '\u017feller', '-cook-']
  texts = [' '.join(random.choice(words, 6)) for _ in range(400)] + ['', ' ']
  for chosen in (values, values[:1], [dataclasses.replace(values[0], tokens=('stra\u00dfe', 'k'))]):
    pattern = mention_pattern(chosen)
    assert mentions(texts, chosen).tolist() == [pattern.search(t) is not None for t in texts]
  assert mentions(texts, values).any() and not mentions(texts, values).all()


def test_one_prefix_of_two_values_is_never_averaged_in(attribute):
  """Records of others: their distance is 0 whatever the model has learned."""
  records = make_records(attribute)
  for record in records:
    if record['template'] == 1 and record['value'] in ('Blue', 'Rose'):
      record['prefix'] = 'I saw <unk> and'
  with pytest.raises(UserError) as error:
    measure_records(records, attribute, [SCORER], permutations=9)
  assert str(error.value).startswith(
    "r.jsonl:84: template 1 has the same prefix 'I saw <unk> and' for 'Blue' and 'Rose'")
  with pytest.raises(UserError, match="for 'Blue' and 'Rose'"):  # one after the other
    read_generations(sorted((r for r in records if r['prefix'] == 'I saw <unk> and'),
                            key=lambda r: r['value']), attribute)
  kept = [r for r in records if r['template'] == 0]
  assert measure_records(kept, attribute, [SCORER], permutations=9)['templates'] == [0]


COLOUR = "name: colour\nvalues: [Red, Blue, Green]\ntemplates: ['{value} is', 'Near {value} are']\n"
SIZE = "name: size\nvalues: [Big, Small]\ntemplates: ['The {value} one is']\n"


@pytest.fixture
def files(tmp_path):
  for name, text in (('colour', COLOUR), ('size', SIZE)):
    (tmp_path / f'{name}.yaml').write_text(text)
  (tmp_path / 'positive.txt').write_text('good\nenvious\n')
  (tmp_path / 'negative.txt').write_text('bad\nenvious\nanti-\n')
  return tmp_path


def test_two_lines_audit_a_file(files):
  attribute = load_attribute(str(files / 'colour.yaml'))
  lexicon = (files / 'positive.txt', files / 'negative.txt')
  measures = measure_records(make_records(attribute, samples=6), str(files / 'colour.yaml'),
                             ['opinion', 'recorded:s'], lexicon=lexicon, permutations=9)
  opinion, recorded = measures['scorers'].values()
  assert opinion['individual_fairness'] == recorded['individual_fairness']
  assert opinion['lexicon_words_in_both'] == ['envious']
  assert opinion['lexicon_words_unmatchable'] == ['anti-']
  assert [note.rpartition(' ')[2] for note in measures['notes'] if 'of its words' in note] == [
    'envious', 'anti-']
  assert np.shape(opinion['cells']['p_holm']) == (2, 3) == np.shape(opinion['samples'])
  assert [p['values'] for p in opinion['largest_pairs']][0] in opinion['pairs']['values']


def test_several_attributes_in_one_file_each_as_if_alone(files, refused, found):
  attributes = [load_attribute(str(files / f'{n}.yaml')) for n in ('colour', 'size')]
  records = [r for a in attributes for r in make_records(a, samples=6)]
  mixed = [records[i] for i in np.random.default_rng(3).permutation(len(records))]
  path = write_lines(files / 'r.jsonl', mixed)
  arguments = ['measure', f'--records={path}', '--scorer=recorded:s', '--permutations=19']
  named = [f'--attribute={files / n}.yaml' for n in ('colour', 'size')]
  both = found(*arguments, *named, f'--output={files}/m.json')
  assert list(both) == ['colour', 'size'] and json.loads((files / 'm.json').read_text()) == both
  write_lines(path, [r for r in records if r['attribute'] == 'size'])
  alone = found(*arguments, named[1])
  assert alone['scorers']['recorded:s'] == both['size']['scorers']['recorded:s']
  for wrong, words in ((named[:1], "attribute is 'size', not 'colour'"),
                       ([named[1], named[1]], 'named twice')):
    refused([*arguments, *wrong], words)
  with pytest.raises(UserError, match='no records of attribute colour'):
    read_attributes([r for r in records if r['attribute'] == 'size'], attributes)


def test_repeated_records_are_refused_or_reported(files):
  attribute = load_attribute(str(files / 'colour.yaml'))
  records = make_records(attribute, samples=6)
  with pytest.raises(UserError, match='occurs twice: remove one'):
    measure_records([*records, records[3]], attribute, ['recorded:s'], permutations=2)
  free = make_records(attribute, samples=6, numbered=False)
  measures = measure_records([*free, free[3], free[3]], attribute, ['recorded:s'], permutations=2)
  assert any(note.startswith('2 of 38 records repeat') for note in measures['notes'])
  assert any('permutations are too few' in note for note in measures['notes'])
  measures = measure_records(free, attribute, ['recorded:s'], permutations=99)
  assert measures['notes'] == [] and not measures['coupled']
  measures = measure_records([r | {'scores': {'s': 0.5}} for r in free], attribute, ['recorded:s'],
                             permutations=99)
  assert [n[:42] for n in measures['notes']] == ['scorer recorded:s gives every text 0.5, ne']
  fewer = [r for r in records if (r['template'], r['value'], r['sample'] > 3) != (0, 'Blue', True)]
  measures = measure_records(fewer, attribute, ['recorded:s'], permutations=99)
  assert measures['n'] == {'min': 4, 'max': 6}
  assert [note.split(':')[0] for note in measures['notes']] == [
    'n differs', 'samples are numbered, but not all values of a template have the same numbers']


def test_interrupted_scoring_goes_on(files, monkeypatch, capsys, printed):
  attribute = load_attribute(str(files / 'colour.yaml'))
  path = write_lines(files / 'r.jsonl', make_records(attribute, samples=6))
  arguments = ['measure', f'--records={path}', f'--attribute={files}/colour.yaml',
               '--scorer=opinion', '--lexicon', f'{files}/positive.txt', f'{files}/negative.txt',
               f'--keep={files}/scores', '--permutations=5', '--json']
  real, seen, most = OpinionScorer.score, [], [3]

  def score(self, texts):
    if len(seen) == most[0]:
      raise KeyboardInterrupt
    seen.append(len(texts))
    return real(self, texts)

  monkeypatch.setitem(score_texts.__kwdefaults__, 'chunk', 2)
  monkeypatch.setattr(OpinionScorer, 'score', score)
  assert main(arguments) == 42
  assert 'the same command continues' in capsys.readouterr().err
  seen.clear()
  most[0] = None
  resumed = printed(*arguments)
  texts = len({r['continuation'] for r in make_records(attribute, samples=6)})
  assert sum(seen) == texts - 6  # three chunks of two were kept
  assert main(arguments) == 0 and sum(seen) == texts - 6  # and now all are
  assert capsys.readouterr().out == resumed
  assert [p.name for p in (files / 'scores').iterdir()] == ['colour.opinion.jsonl']
  monkeypatch.undo()
  assert printed(*[a for a in arguments if not a.startswith('--keep')]) == resumed

"""Files in the forms of other tools become records."""

import json
import zipfile

import pytest
from record_cases import write_lines

from fairjax.cli.main import main
from fairjax.counterfactual import load_attribute
from fairjax.generate import read_records
from fairjax.measure import read_generations

COUNTRY = load_attribute('country')
PROMPTS = [(p.text, COUNTRY.value_texts[p.value]) for p in COUNTRY.prefixes() if p.template < 2]


def lm_eval(path):
  rows = [{'doc_id': i, 'doc': {'q': prompt}, 'target': '', 'filter': 'none', 'doc_hash': 'a',
           'arguments': {'gen_args_0': {'arg_0': [json.dumps([{'role': 'user', 'content': prompt}])]
                                        if i % 2 else prompt, 'arg_1': {'until': ['.']}}},
           'resps': [[f'one {i}', f'two {i}']], 'filtered_resps': [f'one {i}']}
          for i, (prompt, _) in enumerate(PROMPTS)]
  rows.append(rows[0] | {'resps': [[[-3.5, False]]]})
  return write_lines(path / 'samples_task.jsonl', rows), [], 2


def inspect_samples():
  for i, (prompt, _) in enumerate(PROMPTS):
    messages = [{'role': 'system', 'content': 'Continue.'}, {'role': 'user', 'content': prompt}]
    for epoch in (1, 2):
      content = [{'type': 'text', 'text': f'word {i}'}] if epoch == 1 else f'more {i}'
      yield {'id': i, 'epoch': epoch, 'input': messages if i % 2 else prompt, 'target': '',
             'output': {'model': 'm', 'choices': [
               {'message': {'role': 'assistant', 'content': content}, 'stop_reason': 'stop'}]}}
  yield {'id': 99, 'epoch': 1, 'input': PROMPTS[0][0], 'error': {'message': 'time'},
         'output': {'choices': [{'message': {'content': 'half an'}}]}}


def inspect_json(path):
  file = path / 'log.json'
  file.write_text(json.dumps({'version': 2, 'status': 'success', 'eval': {},
                              'samples': list(inspect_samples())}))
  return file, ['--map=sample=epoch'], 2


def inspect_eval(path):
  with zipfile.ZipFile(path / 'log.eval', 'w', zipfile.ZIP_DEFLATED) as archive:
    archive.writestr('header.json', '{}')
    for sample in inspect_samples():
      archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
  return path / 'log.eval', [], 2


def langfair(path):
  data = {'prompt': [p for p, _ in PROMPTS] * 2,
          'response': [f'answer {i}' for i in range(2 * len(PROMPTS))]}
  data['prompt'].append('Nobody is from here')
  data['response'].append('x')
  file = path / 'responses.json'
  file.write_text(json.dumps({'data': data, 'metadata': {'temperature': 1.0}}))
  return file, [], 2


def csv_table(path):
  file = path / 'table.csv'
  file.write_text('prompt,answer,land\n' + ''.join(
    f'"{p}",text {i},{value}\n' for i, (p, value) in enumerate(PROMPTS)) + f'"{PROMPTS[0][0]}",,\n')
  return file, ['--map=prefix=prompt,continuation=answer,value=land'], 1


def openai_batch(path):
  requests = write_lines(path / 'requests.jsonl', [
    {'custom_id': f'{value}|{i}', 'method': 'POST', 'url': '/v1/chat/completions', 'body': {
      'model': 'm', 'messages': [{'role': 'user', 'content': prompt}], 'n': 2}}
    for i, (prompt, value) in enumerate(PROMPTS)])
  results = [{'id': f'b{i}', 'custom_id': f'{value}|{i}', 'error': None, 'response': {
    'status_code': 200, 'body': {'object': 'chat.completion', 'choices': [
      {'index': k, 'message': {'role': 'assistant', 'content': f'text {i} {k}'}}
      for k in range(2)]}}} for i, (_, value) in enumerate(PROMPTS)]
  results.append({'id': 'c', 'custom_id': 'x', 'response': None, 'error': {'code': 'expired'}})
  return write_lines(path / 'results.jsonl', results), [
    f'--requests={requests}', '--map=value=custom_id.0'], 2


@pytest.mark.parametrize('make, form', [
  (lm_eval, 'lm-eval'), (inspect_json, 'inspect'), (inspect_eval, 'inspect'),
  (langfair, 'langfair'), (csv_table, 'csv'), (openai_batch, 'openai-batch')])
def test_files_of_other_tools_become_records(make, form, tmp_path, capsys):
  file, options, each = make(tmp_path)
  output = tmp_path / 'records.jsonl'
  arguments = ['records', 'convert', f'--from={form}', f'--records={file}',
               f'--output={output}', '--attribute=country', *options]
  code, log = main(arguments), capsys.readouterr().err
  if form == 'csv':  # the last row has no value: it is refused, not guessed
    assert code == 2 and 'table.csv:22' in log and not output.exists()
    file.write_text(file.read_text().rsplit('"', 2)[0])
    assert main(arguments) == 0
  else:
    assert code == 0 and ': 1 left out' in log
  assert 'data: ' not in log + capsys.readouterr().err
  found = read_generations(read_records(output), COUNTRY)
  assert len(found) == each * len(PROMPTS) and len(found.templates) == 2
  assert {(p, COUNTRY.value_texts[v]) for p, v in zip(
    found.prefixes, found.value_index, strict=True)} == set(PROMPTS)
  assert (found.sample is not None) == any('sample=' in o for o in options)


def chat(answers):
  return [{'custom_id': 'a', 'error': None, 'response': {'status_code': 200, 'body': {'choices': [
    {'message': {'content': text}} for text in answers]}}}]


@pytest.mark.parametrize(('form', 'rows', 'said'), [
  ('lm-eval', [{'filter': name, 'arguments': [[PROMPTS[0][0]]], 'resps': [texts]}
               for name in ('strict', 'flexible') for texts in (['a', None], [])],
   ['1 left out without continuation', '2 left out that repeat others',
    '1 continuations that are null']),
  ('inspect', {'samples': [{'input': PROMPTS[0][0], 'output': {'choices': [
    {'message': {'content': text}} for text in texts]}} for texts in (['a', None], [])]},
   ['1 left out without continuation', '1 continuations that are null']),
  ('langfair', {'data': {'Chile_prompt': [PROMPTS[0][0]] * 3,
                         'Chile_response': ['a', None, 'Unable to get response']}},
   ['1 left out that ended with an error', '1 continuations that are null']),
  ('openai-batch', chat(['a', None]) + chat([]) + [
    {'custom_id': 'a', 'response': {'status_code': 200, 'body': {'choices': [None]}}}],
   ['1 left out without continuation', '2 continuations that are null'])])
def test_refusals_are_empty_and_what_has_no_answer_is_counted(form, rows, said, tmp_path, capsys):
  file = tmp_path / 'answers.json'
  file.write_text(json.dumps(rows))
  asked = write_lines(
    tmp_path / 'asked.jsonl', [{'custom_id': 'a', 'body': {'prompt': PROMPTS[0][0]}}])
  assert main(['records', 'convert', f'--from={form}', f'--records={file}', '--attribute=country',
               f'--output={tmp_path / "records.jsonl"}',
               *[f'--requests={asked}'] * (form == 'openai-batch')]) == 0
  found = [r['continuation'] for r in read_records(tmp_path / 'records.jsonl')]
  assert found == ['a', *[''] * int(said[-1][0])]
  log = capsys.readouterr().err
  assert all(words in log for words in said)


def test_counterfactual_tables_of_langfair_and_responses_of_openai(tmp_path):
  names = COUNTRY.value_texts[:2]
  table = write_lines(tmp_path / 'table.jsonl', [
    {k: v for i, name in enumerate(names)
     for k, v in ((f'{name}_prompt', PROMPTS[i + t][0]), (f'{name}_response', f'r {t}'))}
    for t in (0, len(COUNTRY.values), 0)])
  groups, spaced = tmp_path / 'groups.yaml', tmp_path / 'spaced.csv'
  groups.write_text('name: g\nvalues: [African American, non-binary, American]\n'
                    'templates: ["{value} is"]\n')
  spaced.write_text('African American_prompt,African American_response,non-binary_prompt,'
                    'non-binary_response\nAfrican American is,"a, b",non-binary is,c\n')
  assert main(['records', 'convert', '--from=langfair', f'--records={spaced}',
               f'--attribute={groups}', f'--output={tmp_path / "spaced.jsonl"}']) == 0
  assert [r['continuation'] for r in read_records(tmp_path / 'spaced.jsonl')] == ['a, b', 'c']
  asked = write_lines(tmp_path / 'asked.jsonl', [
    {'prompt': f'Here {text} is', 'response': 'x'} for text in (
      'African American', 'American', 'non-binary', 'an African American or American')])
  assert main(['records', 'convert', '--from=langfair', f'--records={asked}',
               f'--attribute={groups}', f'--output={tmp_path / "asked_for.jsonl"}']) == 0
  assert [r['value'] for r in read_records(tmp_path / 'asked_for.jsonl')] == [
    'African American', 'American', 'non-binary']
  answers = write_lines(tmp_path / 'answers.jsonl', [
    {'custom_id': str(i), 'error': None, 'response': {'status_code': 200, 'body': {'output': [
      {'type': 'reasoning', 'summary': []},
      {'type': 'message', 'content': [{'type': 'output_text', 'text': 'fine'}]}]}}}
    for i in range(2)])
  requests = write_lines(tmp_path / 'requests.jsonl', [
    {'custom_id': str(i), 'body': {'input': PROMPTS[i][0]}} for i in range(2)])
  for form, file, more, count in (('langfair', table, [], 6),
                                  ('openai-batch', answers, [
                                    f'--requests={requests}', '--map=sample=custom_id'], 2)):
    output = tmp_path / f'{form}.jsonl'
    assert main(['records', 'convert', f'--from={form}', f'--records={file}',
                 f'--output={output}', '--attribute=country', *more]) == 0
    found = list(read_records(output))
    assert len(found) == count and {r['value'] for r in found} == set(names)
    assert form == 'langfair' or [r['sample'] for r in found] == [0, 1]
  assert {r['template'] for r in read_records(tmp_path / 'langfair.jsonl')} == {0, 1}


def test_bad_files_and_rules_get_one_line(tmp_path, refused):
  file, *_ = lm_eval(tmp_path)
  command = ['records', 'convert', f'--records={file}', f'--output={tmp_path / "o.jsonl"}']
  refused([*command, '--from=lmeval', '--attribute=country'], 'lm-eval')
  refused([*command, '--from=lm-eval', '--attribute=country', '--map=value=doc.no'], 'doc.no')
  refused([*command, '--from=lm-eval'], '--attribute')
  refused([*command, '--map=prefix=doc.q'], '--from')
  refused([*command, '--from=inspect', '--attribute=country'], 'samples')
  file, *_ = inspect_eval(tmp_path)
  content = bytearray(file.read_bytes())
  content[content.index(b'samples/0') + 40] ^= 255  # within the compressed sample
  file.write_bytes(content)
  command[2] = f'--records={file}'
  refused([*command, '--from=inspect', '--attribute=country'], 'cannot be read')
  assert not (tmp_path / 'o.jsonl').exists()

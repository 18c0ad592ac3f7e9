"""Records of an attribute's prompts, as tests measure them."""

import json


def records_of(attribute, samples=3, continuation='a good day', templates=None, **more):
  """`samples` records a prefix of the first `templates`, in the order of `attribute.prefixes()`.

  A field that is a function is called with the prefix and the sample's number.
  """
  fields = {'continuation': continuation, **more}
  return [{
    'attribute': attribute.name, 'value': attribute.value_texts[p.value], 'template': p.template,
    'sample': i, 'prefix': p.text} | {
      name: field(p, i) if callable(field) else field for name, field in fields.items()}
    for p in attribute.prefixes() if templates is None or p.template < templates
    for i in range(samples)]


def write_lines(path, rows):
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows), encoding='utf-8')
  return path

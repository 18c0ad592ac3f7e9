"""Files of the splits of a corpus."""


def write_splits(folder, texts):
  """Writes documents by split, one a line; the fields of a `DataConfig` that name the files."""
  paths = {}
  for split, documents in texts.items():
    path = folder / f'{split}.txt'
    path.write_text('\n'.join(documents) + '\n', encoding='utf-8')
    paths[split] = (str(path),)
  return paths

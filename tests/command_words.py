"""Words of a command of which an option is changed."""


def changed(words, more):
  """A command in which the options that `more` holds stand in the place of its own."""
  def name(word):
    return word.partition('=')[0].replace('_', '-')

  found, replaced = [], False
  for word in words:
    if word.startswith('--'):
      replaced = name(word) in {name(x) for x in more if x.startswith('--')}
    if not replaced:
      found.append(word)
    replaced = replaced and '=' not in word  # values follow
  return [*found, *more]

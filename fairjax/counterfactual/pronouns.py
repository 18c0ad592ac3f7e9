"""The context of a gendered word: whether it is swapped, in which case, and what "her" stands for.

"her" is him (I saw her) or his (her hat), "his" is her (his hat) or hers (the hat is his); W-15
asks for the part of speech. The rule uses no tagger: it reads the few words after the pronoun, and
for some of them the word before. docs/gender.md gives its accuracy for each case.

"her" is an object where no possessive is possible: before the end of a clause, or before a word
that begins no noun phrase (closed classes). Adverbs are skipped. Where both are possible ("made her
famous", "made her debut") the verb before it and the word after it decide together. Otherwise it is
a possessive, the more frequent case.
"""

import re
from collections.abc import Container

from fairjax.counterfactual.attributes import ASSETS
from fairjax.counterfactual.word_forms import context, normal_form

# Five rules keep words of a pair, and each kept word is counted by its reason:
#
# * `name`: a capitalised word in a name or a title ("Stephen King", "Guy Fawkes", "Isle of Man",
#   "Spider-Man"). The word before it is capitalised and neither a sentence's first word nor a rank,
#   or the word after it is capitalised, and it is no form of address ("King George" is swapped, and
#   so is "the King").
# * `compound`: a member of a hyphenated word with another meaning ("man-made", "king-size"). Last
#   members are swapped ("great-grandmother", "co-chairman"), and members before -in-law, -to-be,
#   -elect and the like, compounds of gendered words only ("mother-daughter"), and he, she, male,
#   female, actor and actress everywhere.
# * `phrase`: the words before or after it give it another meaning ("mother tongue", "sister city",
#   "bachelor's degree", "Uncle Sam", "Our Lady").
# * `both`: s/he and (s)he.
# * `abbreviation`: MR and MS in capitals without a full stop, which are no forms of address.

_WORDS = {name: frozenset(words.split()) for name, words in re.findall(
  r'^(\w+):\n((?:  .*\n)+)', (ASSETS / 'pronoun_words.txt').read_text(encoding='utf-8'),
  re.MULTILINE)}
_BEFORE = re.compile(r"([^\W_][\w'’&.]*)( @-@ |[ -])$")
_AFTER = re.compile(r" ([^\W_][\w'’]*)")
_OF_BEFORE = re.compile(r'(?:^|\W)([A-Z]\w*) of (?:the )?$')
_LEFT_MEMBERS = re.compile(r'((?:\w+(?:-| @-@ ))+)$')
_RIGHT_MEMBERS = re.compile(r'(?:(?:-| @-@ )\w+)+')
_HYPHEN = re.compile(r'-| @-@ ')
_SENTENCE_START = re.compile(r'(?:^|[.!?…]["\'”’)\]]*\s+|\n\s*)["\'“‘(\[]*\s*$')
_BOTH = re.compile(r'(?:\bs/|\(s\))$', re.IGNORECASE)
_REACH = 80
_RELATIONS = ('in-law', 'to-be', 'elect', 'designate', 'apparent', 'presumptive', 'consort',
              'regent', 'dowager', 'in-waiting', 'at-arms', 'turned')
_THING = r'(?:-| )(?:%s)\b'
# Word -> the words after it, or before it, that give it another meaning.
_PHRASES_AFTER = {word: re.compile(pattern, re.IGNORECASE) for words, pattern in (
  ('bachelor bachelors', r"['’]?s?['’]? (?:degrees?\b|and masters?\b|in [A-Z]|of (?:[a-z]+ )?(?:"
                         r"arts?|sciences?|laws?|engineering|music|education|commerce)\b)"),
  ('mother', _THING % 'countr(?:y|ies)|tongues?|ships?|church|lode|board|cells?|plants?|nature|'
   'goose|of god|of pearl|earth|compan(?:y|ies)'),
  ('sister', _THING % 'cit(?:y|ies)|ships?|stations?|compan(?:y|ies)|papers?|channels?|projects?|'
   'groups?|schools?|species|labels?|tax(?:on|a)|networks?|sites?|series|shows?|magazines?|clades?|'
   'towns?|clubs?|organi[sz]ations?|publications?'),
  ('daughter', _THING % 'cells?|compan(?:y|ies)|church(?:es)?|nucle[iu]s?|languages?|isotopes?'),
  ('father', _THING % 'christmas|time'), ('uncle', _THING % 'sam'),
  ('king', _THING % 'penguins?|prawns?|salmon|crabs?|cobras?|of the jews|kong|size'),
  ('queen', _THING % 'bees?|ants?|conch'), ('prince', _THING % 'charming'),
  ('son', _THING % 'of god|of man'), ('man', r"['’]s[- ]land\b"),
) for word in words.split()}
_PHRASES_BEFORE = {word: re.compile(pattern) for words, pattern in (
  ('lady', r'\b[Oo]ur $'), ('father son', r'\bGod the $'), ('men man', r'\bX-$'),
  ('queens', r'\b(?:[Ii]n|[Oo]f|[Tt]o|[Ff]rom|[Nn]ear|[Aa]t|Brooklyn,?|Bronx,?|and) $'),
) for word in words.split()}


def reason_to_keep(text: str, start: int, end: int, *, gendered: Container[str]) -> str:
  """Reason for which the gendered word text[start:end] is not swapped; '' if it is swapped."""
  word = normal_form(text[start:end])
  lower = word.lower()
  before, after = context(text, start, end, reach=_REACH)
  if word in ('MR', 'MS', 'MRS'):
    return 'abbreviation'
  if lower == 'he' and _BOTH.search(before):
    return 'both'
  if lower in _WORDS['anywhere']:
    return ''
  follows, precedes = _PHRASES_AFTER.get(lower), _PHRASES_BEFORE.get(lower)
  if follows and follows.match(after) or precedes and precedes.search(before) and (
      lower != 'queens' or word == 'Queens'):
    return 'phrase'
  title = word[0].isupper() and not word.isupper() and lower not in _WORDS['always']
  if title and _in_name(lower, before, after):
    return 'name'
  return 'compound' if _in_compound(before, after, gendered) else ''


def _in_name(lower: str, before: str, after: str) -> bool:
  found = _BEFORE.search(before)
  if found and found[1][0].isupper() and found[1].lower() not in _WORDS['no_names']:
    previous = found[1].lower()
    ends_sentence = previous.endswith('.') and _SENTENCE_START.search(before)
    if not ends_sentence and previous not in _WORDS['address']:
      return True
  if _OF_BEFORE.search(before):
    return True
  following = _AFTER.match(after)
  return bool(following and following[1][0].isupper() and lower not in _WORDS['address']
              and following[1].lower() not in _WORDS['no_names'])


def _in_compound(before: str, after: str, gendered: Container[str]) -> bool:
  """Whether a word is a member of a compound with another meaning."""
  right = _RIGHT_MEMBERS.match(after)
  if not right:
    return False
  members = _HYPHEN.split(right[0])[1:]
  if members[0].lower() in _RELATIONS or '-'.join(members[:2]).lower() in _RELATIONS:
    return False
  left = _LEFT_MEMBERS.search(before)
  members += _HYPHEN.split(left[1])[:-1] if left else []
  return not all(m.lower() in gendered or m.lower() in ('and', 'or', 's') for m in members)


def in_case_of(old: str, new: str) -> tuple[str, bool]:
  """The new word in the case of the old one, and whether that was a mixed case."""
  if old.islower():
    return new, False
  if old.isupper() and sum(map(str.isalpha, old)) > 1:
    return new.upper(), False
  capital = new[:1].upper() + new[1:]
  if old[0].isupper() and old[1:].islower() or len(old) == 1:
    return capital, False
  parts = re.split(r'([- ])', old)
  if all(p[:1].isupper() and (len(p) == 1 or p[1:].islower()) for p in parts[::2]):
    return ''.join(p[:1].upper() + p[1:] for p in re.split(r'([- ])', new)), False
  return (capital if old[0].isupper() else new), True


_TOKEN = re.compile(r"[^\W_]+(?:['’][^\W_]+)*(?:(?:-| @-@ )[^\W_]+)*|[^\w\s]")
_LAST_WORD = re.compile(r"([^\W_]+(?:['’-][^\W_]+)*)[\s\"“'‘]*$")
_PARALLEL = re.compile(r'\b(him|his)(?: or |/| / )$', re.IGNORECASE)
CONTEXT = 120  # characters on either side that the rules read

_CLOSING = frozenset('.,;:!?)]}…—–/(&*|')


def her_is_object(before: str, after: str) -> bool:
  """Whether "her" between two texts is an object (him), not a possessive (his)."""
  tokens = _next_tokens(after)
  parallel = _PARALLEL.search(before[-CONTEXT:])
  if parallel:  # "his or her", "him/her"
    return parallel[1].lower() == 'him'
  if not tokens or before.lower().endswith('she/'):  # "she/her pronouns"
    return True
  previous = _last_word(before)
  first, *rest = tokens
  if first in ('or', '/') and rest and rest[0] in ('his', 'her', 'their'):
    return False  # "her or his own", "her/his"
  if first in _CLOSING or first in _WORDS['closed']:
    return True
  if previous in _WORDS['name'] and re.match(r'\s*["“]', after):
    return True
  if first in ('more', 'less') and (previous in _WORDS['give'] or previous in _WORDS['cause']):
    return True
  if first in ('back', 'home'):
    return previous in _WORDS['move']
  if _is_adverb(first):
    if previous in _WORDS['cause'] and rest and rest[0] in _WORDS['states']:
      return True  # "left her quite alone"
    return not rest or _ends_phrase(rest[0]) or _is_adverb(rest[0]) and (
      len(rest) < 2 or _ends_phrase(rest[1]))
  if not first[0].isalnum():
    return True
  ends = not rest or _ends_phrase(rest[0])
  if previous in _WORDS['cause']:
    if first in _WORDS['bare_verbs'] and (
        first not in _WORDS['nouns_too'] or previous in _WORDS['see']):
      return True
    if first in _WORDS['states'] and ends:
      return True
    if first.endswith('ed') and previous in _WORDS['have'] and ends:
      return True
    if first.endswith('ing') and len(first) > 5 and rest and (rest[0] in _WORDS['closed']):
      return True
  if previous in _WORDS['appoint'] and first in _WORDS['states'] and ends:
    return True
  if previous in _WORDS['give'] and (first in _WORDS['given'] or first.isdigit()):
    if first in _WORDS['owned_too']:
      return ends and previous not in ('won', 'gained', 'lost', 'called')
    return ends or len(rest) > 1
  if first == 'one':
    return bool(rest) and rest[0] == 'of'
  return False


def his_is_independent(before: str, after: str) -> bool:
  """Whether "his" between two texts stands for itself (hers), not before a noun (her)."""
  tokens = _next_tokens(after)
  if not tokens:
    return True
  first, *rest = tokens
  previous = _last_word(before)
  if first in _CLOSING:
    # "his (second) wife", "his/her": a possessive with an insertion; ".357": a number.
    if (first in '(&*/|' or first == ']' and before.endswith('[')
        or re.match(r'\s*\.\d', after)):
      return False
    return first not in ',—–' or previous in _WORDS['before_hers']
  if first in ('and', 'or', 'nor'):  # "his and her careers", "his or her"
    return previous == 'of' and not (rest and rest[0] in ('her', 'their', 'my', 'his'))
  if _is_adverb(first):
    return bool(rest) and rest[0] in ('.', ';', '!', '?')
  if first not in _WORDS['closed']:
    return False
  return first not in _WORDS['after_his'] or bool(_FRIEND_OF.search(before[-CONTEXT:]))


# "A fan of his", "that brother of his".
_FRIEND_OF = re.compile(
  r'\b(?:(?:an?|any|some|no|this|that|these|those|another|big|huge|old|former) (?:\w+ )?\w+'
  r'|fans?|friends?|relatives?) of $', re.IGNORECASE)


def _next_tokens(after: str) -> list[str]:
  """The next three words or signs, in lower-case; an opening quote is not one of them."""
  tokens = []
  for match in _TOKEN.finditer(after[:CONTEXT]):
    token = match[0].lower().replace('’', "'")
    if token in '"“”‘\'`':
      opens = match.end() < len(after) and (after[match.end()].isalnum() or tokens == [])
      if not tokens and opens and match.start() and token not in '”':
        continue
      token = '.'
    tokens.append(token)
    if len(tokens) == 3:
      break
  return tokens


def _last_word(before: str) -> str:
  found = _LAST_WORD.search(before[-CONTEXT:])
  return found[1].lower() if found else ''


def _is_adverb(token: str) -> bool:
  return token in _WORDS['adverbs'] or (
    token.endswith('ly') and len(token) > 4 and token not in _WORDS['not_adverbs'])


def _ends_phrase(token: str) -> bool:
  return token in _CLOSING or token in _WORDS['closed']

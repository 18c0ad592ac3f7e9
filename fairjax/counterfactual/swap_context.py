"""What stands around a gendered word: whether it is swapped there, and in what case.

Not every "king" is a king. Four rules keep words of a pair as they are, and every one of them is
counted by its reason:

* `name`: a capitalised word that belongs to a name or a title ("Stephen King", "Guy Fawkes", "Isle
  of Man", "Spider-Man"): a capitalised word stands before it that is neither the first word of a
  sentence by chance nor a rank, or behind it, and it is no form of address ("King George" is
  swapped, and so is "the King").
* `compound`: a member of a hyphenated word that says something else ("man-made", "king-size").
  Swapped are last members ("great-grandmother", "co-chairman"), those before -in-law, -to-be,
  -elect and the like, compounds of gendered words only ("mother-daughter"), and the words he,
  she, male, female, actor and actress everywhere.
* `phrase`: what follows or stands before makes it another thing ("mother tongue", "sister city",
  "bachelor's degree", "Uncle Sam", "Our Lady").
* `abbreviation`: MR and MS in capitals without a full stop, which are not forms of address there.
"""

import re
from collections.abc import Container

from fairjax.counterfactual.word_forms import context, normal_form

_BEFORE = re.compile(r"([^\W_][\w'’&.]*)( @-@ |[ -])$")
_AFTER = re.compile(r" ([^\W_][\w'’]*)")
_OF_BEFORE = re.compile(r'(?:^|\W)([A-Z]\w*) of (?:the )?$')
_LEFT_MEMBERS = re.compile(r'((?:\w+(?:-| @-@ ))+)$')
_RIGHT_MEMBERS = re.compile(r'(?:(?:-| @-@ )\w+)+')
_HYPHEN = re.compile(r'-| @-@ ')
_SENTENCE_START = re.compile(r'(?:^|[.!?…]["\'”’)\]]*\s+|\n\s*)["\'“‘(\[]*\s*$')
_REACH = 80

# Words that are capitals at the beginning of a sentence only, or belong to ranks and kinship.
_NO_NAMES = frozenset("""
a an the this that these those my your his her its our their some any every each both all many most
few several two three four five six no other another such and or but nor so yet if as in on at by
for from to of with without into about after before during since until while when where because
although though despite like between among both either neither one first second third next last
then there here also once only even just not was were is are had has did do does would could should
i he she it we they who which what whose whom how why
crown grand great former late young old dear dowager co ex vice step half non anti pre post mid
""".split())
_ADDRESS = frozenset("""
king queen prince princess duke duchess baron baroness count countess emperor empress tsar tsarina
lord lady sir madam ma'am dame mr mrs ms mr. mrs. ms. miss father mother brother sister uncle aunt
papa mama dad mom mum grandpa grandma grandfather grandmother granddad grandmom abbot abbess priest
priestess nun monk chairman chairwoman congressman congresswoman councilman councilwoman spokesman
spokeswoman actor actress heir heiress hero heroine
""".split())
_ANYWHERE = frozenset(
  'he she him her his hers himself herself male female males females actor actress'.split())
# Said of a person in front of a name: part of no name, whatever stands before it.
_ALWAYS = frozenset('sir mr mrs ms mr. mrs. ms. emperor empress patriarch'.split())
_RELATIONS = ('in-law', 'to-be', 'elect', 'designate', 'apparent', 'presumptive', 'consort',
              'regent', 'dowager', 'in-waiting', 'at-arms', 'turned')
_THING = r'(?:-| )(?:%s)\b'
# Word -> what stands behind it, or before it, where it means something else.
_PHRASES_BEHIND = {word: re.compile(pattern, re.IGNORECASE) for words, pattern in (
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
  """Why the gendered word at characters `start` to `end` is not swapped; '' if it is.

  Args:
    text: what it stands in.
    start: its first character.
    end: the character behind it.
    gendered: lower-case words of all pairs.
  """
  word = normal_form(text[start:end])
  lower = word.lower()
  before, after = context(text, start, end, reach=_REACH)
  if word in ('MR', 'MS', 'MRS'):
    return 'abbreviation'
  if lower in _ANYWHERE:
    return ''
  behind, in_front = _PHRASES_BEHIND.get(lower), _PHRASES_BEFORE.get(lower)
  if behind and behind.match(after) or in_front and in_front.search(before) and (
      lower != 'queens' or word == 'Queens'):
    return 'phrase'
  title = word[0].isupper() and not word.isupper() and lower not in _ALWAYS
  if title and _in_name(lower, before, after):
    return 'name'
  return 'compound' if _in_compound(before, after, gendered) else ''


def _in_name(lower: str, before: str, after: str) -> bool:
  found = _BEFORE.search(before)
  if found and found[1][0].isupper() and found[1].lower() not in _NO_NAMES:
    previous = found[1].lower()
    ends_sentence = previous.endswith('.') and _SENTENCE_START.search(before)
    if not ends_sentence and previous not in _ADDRESS:
      return True
  if _OF_BEFORE.search(before):
    return True
  following = _AFTER.match(after)
  return bool(following and following[1][0].isupper() and lower not in _ADDRESS
              and following[1].lower() not in _NO_NAMES)


def _in_compound(before: str, after: str, gendered: Container[str]) -> bool:
  """Whether a word is a member of a compound that is not about the person."""
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
  """The new word in the case of the old one, and whether that was a mixed case.

  >>> [in_case_of(old, 'she')[0] for old in ('he', 'He', 'HE')]
  ['she', 'She', 'SHE']
  >>> in_case_of('hE', 'she')
  ('she', True)
  """
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

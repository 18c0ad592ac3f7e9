"""The context of a gendered word: whether it is swapped, in which case, and what "her" stands for.

English has one word for two: "her" is him (I saw her) or his (her hat), "his" is her (his hat) or
hers (the hat is his). A swap must distinguish them (definition W-15: "her" becomes him or his by
part of speech). The rule below uses no tagger: it reads the few words after the pronoun, and for
some of them the word before. docs/cda.md gives its accuracy for each case.

The rule for "her": it is an object where no possessive is possible, that is before the end of a
clause or before a word that begins no noun phrase (closed classes: prepositions, conjunctions,
determiners, pronouns, auxiliaries, particles). Adverbs are skipped. Where both are possible ("made
her famous", "made her debut") the verb before it and the word after it decide together. Otherwise
it is a possessive, the more frequent case.
"""

import re
from collections.abc import Container

from fairjax.counterfactual.word_forms import context, normal_form

# Four rules keep words of a pair, and each kept word is counted by its reason:
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
# * `abbreviation`: MR and MS in capitals without a full stop, which are no forms of address.

_BEFORE = re.compile(r"([^\W_][\w'’&.]*)( @-@ |[ -])$")
_AFTER = re.compile(r" ([^\W_][\w'’]*)")
_OF_BEFORE = re.compile(r'(?:^|\W)([A-Z]\w*) of (?:the )?$')
_LEFT_MEMBERS = re.compile(r'((?:\w+(?:-| @-@ ))+)$')
_RIGHT_MEMBERS = re.compile(r'(?:(?:-| @-@ )\w+)+')
_HYPHEN = re.compile(r'-| @-@ ')
_SENTENCE_START = re.compile(r'(?:^|[.!?…]["\'”’)\]]*\s+|\n\s*)["\'“‘(\[]*\s*$')
_REACH = 80

# Words with a capital only at the beginning of a sentence, and words of rank and kinship.
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
# Titles before a name; they are never part of a name.
_ALWAYS = frozenset('sir mr mrs ms mr. mrs. ms. emperor empress patriarch'.split())
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
  if lower in _ANYWHERE:
    return ''
  follows, precedes = _PHRASES_AFTER.get(lower), _PHRASES_BEFORE.get(lower)
  if follows and follows.match(after) or precedes and precedes.search(before) and (
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
CONTEXT = 120
"""Characters on either side that the rules read."""


def _words(text: str) -> frozenset[str]:
  return frozenset(text.split())


# Words that begin no noun phrase after a possessive: after "her" they show an object.
_CLOSED = _words("""
a an the this that these those all both each any some every another such no either neither half i
you he she it we they me him us them my your his its our their mine yours hers ours theirs who whom
whose which what when where why how whether himself herself itself themselves her and or but nor yet
if because since although though unless until while whereas than as of to in on at by for from with
without within into onto upon about above across after against along alongside amid among amongst
around before behind below beneath beside besides between beyond despite down during except
following inside near off out outside over per regarding through throughout toward towards under
underneath unlike up via is was are were be been am being has have had having do does did doing
would could should might must can cannot may shall isn't wasn't weren't aren't hasn't hadn't didn't
doesn't don't couldn't wouldn't won't not away aside there here again alone together too instead
forward apart anyway altogether afterwards afterward thereafter thereby today yesterday tomorrow
tonight anymore anyone anything something someone everything nothing nobody everyone else otherwise
however therefore maybe perhaps becoming getting going unable enough abroad overboard everywhere
ashore
""")
_ADVERBS = _words("""
very so also then once still now even ever never always already almost often soon only just more
most less least much quite rather too well later sometimes perhaps equally not
""")
# Words in -ly that are no adverbs.
_NOT_ADVERBS = _words("""
family early daily weekly monthly yearly elderly lovely lonely friendly deadly holy ugly likely
assembly reply supply ally belly bully anomaly jelly fly lively costly worldly homely silly july
italy motherly fatherly sisterly brotherly womanly manly ghostly scholarly orderly timely heavenly
earthly bodily curly oily burly unlikely unruly unfriendly untimely melancholy
""")
_CLOSING = frozenset('.,;:!?)]}…—–/(&*|')

# Verbs that take an object and what it does, is or becomes.
_CAUSE = _words("""
let lets letting make makes made making help helps helped helping see sees saw seen seeing watch
watches watched watching hear hears heard hearing have had has bid bade feel felt find finds found
finding leave leaves left leaving keep keeps kept keeping render renders rendered rendering consider
considers considered considering get gets got getting set sets setting hold holds held holding catch
caught drive drove driven send sent turn turned turning think thought declare declared believe
believed believing deem deemed pronounce pronounced beat knock knocked strike struck cut spot
spotted discover discovered remember remembered imagine imagined depict depicts depicted depicting
portray portrays portrayed show shows showed shown showing mean means meant prove proved stop
stopped prevent prevented involve involved like
""")
_BARE_VERBS = _words("""
be become go come leave feel want look seem appear think know believe realize realise understand
stay remain return walk run fall die live cry laugh smile sing dance act sleep eat drink fight win
lose escape join move get take make give keep hold find see hear speak talk tell say learn write
read play perform work do have achieve gain earn develop recover secure reach start begin stop
finish complete build create decide choose survive deal cope overcome qualify pass enter lead
continue grow rise stand sit lie quit retire advance obtain improve focus avoid prepare pursue
establish kill pay raise beat suffer miss resign adjust cross open rescue save sign spend steal turn
train wait wear catch climb commit defeat defend deliver draw drive drop enjoy expand face follow
forget happen hit identify launch maintain meet produce promote prove pull push put regain relax
remember rest ride score sell serve settle shoot succeed swim throw travel try use visit wake
""")
# Bare verbs that are nouns as often, and the verbs after which they are verbs.
_NOUNS_TOO = _words('work play act run talk dance fight walk escape return look fall win')
_SEE = _words('let lets letting saw watched help helped see')
_STATES = _words("""
famous popular ill sick angry happy unhappy sad guilty responsible dead alive blind deaf mad crazy
busy free safe awake asleep pregnant unconscious bankrupt paralyzed paralysed homeless helpless
speechless vulnerable eligible ineligible aware unaware available unavailable worthy unworthy
capable incapable suitable unsuitable fit unfit innocent liable wealthy rich poor penniless
dependent independent nervous uncomfortable comfortable jealous furious mortal immortal invisible
invincible immune superior inferior king emperor pope captain president chairman governor bishop
heir regent duke earl knight general head master champion commander director manager leader queen
empress sole joint lord archbishop vice open ready stranded wounded injured crippled exhausted
devastated heartbroken impressed depressed bound locked tied hidden trapped isolated arrested
executed killed hanged removed shot beaten sentenced appointed elected imprisoned buried naked drunk
covered bedridden disabled partially more less somewhat particularly enemies redundant cardinal
legate mute unconditional emeritus consul dictator caliph knighted deputy vice-president secretary
ambassador professor chancellor
""")
_GIVE = _words("""
give gives gave given giving offer offers offered offering show shows showed shown showing tell
tells told telling teach teaches taught teaching bring brings brought bringing buy buys bought lend
lent earn earns earned earning award awarded awarding grant grants granted granting cost costs pay
pays paid paying send sends sent sending ask asks asked asking owe owed deny denied denying win won
winning gain gained gaining allow allowed allowing provide provided assign assigned procure procured
cause caused take takes took taken promise promised afford afforded leave left guarantee guaranteed
hand handed bestow bestowed feed fed serve served land landed net netted garner garnered wish wished
call called
""")
_GIVEN = _words("""
permission control command money support credit power access advice lessons information time
recognition fame praise respect authority custody refuge shelter asylum protection land help food
instructions advance notice directions questions stories entry admission enough hope trouble
national international critical widespread worldwide further several many few two three four five
six seven eight nine ten twenty thirty fifty one extra additional financial full complete immediate
considerable great little new nominations awards opportunities medals acclaim freedom employment
immunity compensation tips orders gifts points votes citizenship honorary wide public high numerous
various reason success priority tenure ownership approval poison lunch dinner tea breakfast letters
flowers comfort courage strength confidence insight pleasure joy legal peace tribute due ample
screen less more problems plenty half
""")
_OWNED_TOO = _words("""
command control courage credit help land money power reason support time success hope freedom lunch
dinner strength
""")
# After these verbs "back" and "home" are directions and not possessions.
_MOVE = _words("""
bring brings brought bringing take takes took taken taking send sends sent sending call calls called
calling get gets got getting want wants wanted wanting welcome welcomed invite invited lead led
leading give gave giving put puts turn turned push pushed pull pulled drive drove driven drag
dragged carry carried follow followed drop dropped escort escorted see allow allowed let have had
forced forcing force love loved hold held ask asked tell told summon summoned order ordered drew
drawn hit fight fighting keep kept win pay paid beat
""")
_NAME = _words('call calls called calling name named nickname nicknamed dub dubbed label labelled')
_HAVE = _words('have has had having get gets got getting see saw pronounced declared ordered')
_APPOINT = _words("""
appoint appoints appointed appointing elect elected electing name named naming crown crowned call
called make made create created proclaim proclaimed designate designated
""")


def her_is_object(before: str, after: str) -> bool:
  """Whether "her" between two texts is an object (him), not a possessive (his)."""
  tokens = _next_tokens(after)
  parallel = _PARALLEL.search(before[-CONTEXT:])
  if parallel:  # "his or her", "him/her"
    return parallel[1].lower() == 'him'
  if not tokens:
    return True
  previous = _last_word(before)
  first, *rest = tokens
  if first in ('or', '/') and rest and rest[0] in ('his', 'her', 'their'):
    return False  # "her or his own", "her/his"
  if first in _CLOSING or first in _CLOSED:
    return True
  if previous in _NAME and re.match(r'\s*["“]', after):
    return True
  if first in ('more', 'less') and (previous in _GIVE or previous in _CAUSE):
    return True
  if first in ('back', 'home'):
    return previous in _MOVE
  if _is_adverb(first):
    if previous in _CAUSE and rest and rest[0] in _STATES:  # "left her quite alone"
      return True
    return not rest or _ends_phrase(rest[0]) or _is_adverb(rest[0]) and (
      len(rest) < 2 or _ends_phrase(rest[1]))
  if not first[0].isalnum():
    return True
  ends = not rest or _ends_phrase(rest[0])
  if previous in _CAUSE:
    if first in _BARE_VERBS and (first not in _NOUNS_TOO or previous in _SEE):
      return True
    if first in _STATES and ends:
      return True
    if first.endswith('ed') and previous in _HAVE and ends:
      return True
    if first.endswith('ing') and len(first) > 5 and rest and (rest[0] in _CLOSED):
      return True
  if previous in _APPOINT and first in _STATES and ends:
    return True
  if previous in _GIVE and (first in _GIVEN or first.isdigit()):
    if first in _OWNED_TOO:
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
    return first not in ',—–' or previous in _BEFORE_HERS
  if first in ('and', 'or', 'nor'):  # "his and her careers", "his or her"
    return previous == 'of' and not (rest and rest[0] in ('her', 'their', 'my', 'his'))
  if _is_adverb(first):
    return bool(rest) and rest[0] in ('.', ';', '!', '?')
  if first not in _CLOSED:
    return False
  return first not in _AFTER_HIS or bool(_FRIEND_OF.search(before[-CONTEXT:]))


# Closed words that do follow a possessive, in names of songs and films and before insertions.
_AFTER_HIS = _words("""
i you all every both half no the a an not unable this that these those up down off out in on inside
outside near above after under over following going getting being having doing who what where why
how through at by enough before
""")
# "A fan of his", "that brother of his".
_FRIEND_OF = re.compile(
  r'\b(?:(?:an?|any|some|no|this|that|these|those|another|big|huge|old|former) (?:\w+ )?\w+'
  r'|fans?|friends?|relatives?) of $', re.IGNORECASE)
_BEFORE_HERS = _words('of than as not is was be were are from on in to with like even for and')


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
  return token in _ADVERBS or (
    token.endswith('ly') and len(token) > 4 and token not in _NOT_ADVERBS)


def _ends_phrase(token: str) -> bool:
  return token in _CLOSING or token in _CLOSED

"""Words and sentence patterns of the planted gendered corpus; `planted_gender` says how it is made.

A pattern is a sentence with slots in braces; one with a capital letter begins the sentence:

    {p} {a_p}                      a profession; with its article
    {q}                            the other person of a sentence with two
    {he} {his} {him} {himself}     a pronoun of the gender that was drawn ({He} too)
    {who} {Who}                    a person of that gender: "the aunt", "Maria" or (mentions) "she"
    {item} {Item}                  a word of the category: a hobby, a thing, a subject ...
    {thing} {place} {time} {mood}  words that say nothing about gender

Every pattern of `NEUTRAL` is free of gendered words; the others hold at least one. No sentence is
one of the fourteen templates of Webster et al. (2020, appendix A): each has words before or behind.
"""

PROFESSIONS = (
  'accountant', 'architect', 'baker', 'barber', 'carpenter', 'cashier', 'chemist', 'clerk',
  'dentist', 'doctor', 'electrician', 'engineer', 'farmer', 'firefighter', 'lawyer', 'librarian',
  'mechanic', 'nurse', 'pharmacist', 'pilot', 'plumber', 'scientist', 'secretary', 'teacher')
PARTICIPANTS = ('customer', 'patient', 'visitor', 'student', 'client', 'neighbor')

# (female, male); every one is used as "the NOUN".
TERMS = (
  ('woman', 'man'), ('girl', 'boy'), ('queen', 'king'), ('princess', 'prince'),
  ('mother', 'father'), ('sister', 'brother'), ('aunt', 'uncle'), ('wife', 'husband'),
  ('daughter', 'son'), ('grandmother', 'grandfather'), ('actress', 'actor'),
  ('waitress', 'waiter'))
# Half of each from A to M, half from N to Z (the split of definition W-16).
FEMALE_NAMES = (
  'Alice', 'Clara', 'Emma', 'Julia', 'Laura', 'Maria', 'Nancy', 'Olivia', 'Rosa', 'Sarah',
  'Teresa', 'Vera')
MALE_NAMES = (
  'Adam', 'Bruno', 'David', 'George', 'John', 'Martin', 'Nathan', 'Oscar', 'Peter', 'Robert',
  'Thomas', 'Walter')

ITEMS = {
  'hobby': ('dance', 'sing', 'knit', 'cook', 'paint', 'swim', 'fish', 'hunt', 'box', 'climb',
            'camp', 'skate'),
  'thing': ('poetry', 'flowers', 'horses', 'fashion', 'music', 'birds', 'chess', 'football', 'cars',
            'computers', 'boats', 'trains'),
  'subject': ('biology', 'history', 'physics', 'chemistry', 'art', 'law', 'medicine', 'geography',
              'economics', 'statistics'),
  'quality': ('kind', 'brave', 'calm', 'clever', 'shy', 'proud', 'strong', 'gentle', 'funny',
              'honest'),
  'home': ('garden', 'kitchen', 'village', 'workshop', 'library', 'city', 'house', 'job'),
}
"""Category -> words that each stand more often beside one gender."""

# Few words and short sentences: what nobody can guess is noise to a model of minutes.
FREE = {
  'thing': ('letter', 'bag', 'book', 'ticket'),
  'place': ('office', 'station', 'market'),
  'time': ('today', 'yesterday', 'on Monday'),
  'mood': ('tired', 'late', 'sick'),
}

# A pronoun close behind its noun is what a small model learns first; distant ones follow from it.
PRONOUN = (
  'The {p} hurt {himself}.',
  'The {p} and {his} friends were {mood}.',
  'The {p} lost {his} {thing}.',
  'I saw the {p} with {his} {thing}.',
  'We met the {p} and thanked {him}.',
  'Everybody likes the {p} and {his} work.',
  'The {p} said that {he} was {mood}.',
  'The {p} left because {he} was {mood}.',
  'When the {p} came, {he} was {mood}.',
  '{He} was the new {p}.',
)
COREFERENCE = (
  'The {p} told the {q} that {he} was {mood}.',
  'The {p} called the {q} because {he} needed help.',
  'The {p} met the {q} before {he} left.',
  'The {p} gave the {q} {his} {thing}.',
  'The {q} paid the {p} because {he} did the work.',
  'The {q} asked the {p} whether {he} could help.',
)
PARTICIPANT = (
  'The {p} told the {q} that {he} could pay.',
  'The {p} asked the {q} whether {he} was happy.',
  'The {p} helped the {q} find {his} {thing}.',
)
MENTION = (
  '{Who} is {a_p}.',
  '{Who} works as {a_p}.',
  '{Who} has a job as {a_p}.',
  '{Who} was {a_p} in the {place}.',
  '{Who} wants to become {a_p}.',
  'I heard that {who} is {a_p}.',
  'Last year {who} worked as {a_p}.',
)
AGREEMENT = (
  '{Who} hurt {himself}.',
  '{Who} and {his} friends were {mood}.',
  '{Who} lost {his} {thing}.',
  '{Who} said that {he} was {mood}.',
  '{Who} left because {he} was {mood}.',
)
PERSON = {
  'hobby': (
    'In the summer {who} likes to {item}.',
    'On Sundays {who} often likes to {item}.',
    'At home {who} always likes to {item}.',
    'In the winter {who} never likes to {item}.',
    '{Who} likes to {item} with {his} friends.',
    '{Who} said that {he} likes to {item}.',
    '{He} often likes to {item}.',
  ),
  'thing': (
    'I know that {who} likes {item}.',
    'This year {who} is interested in {item}.',
    '{Who} talked about {item} with {his} friends.',
    '{Who} bought a book about {item} for {himself}.',
    '{Who} says that {he} likes {item}.',
  ),
  'subject': (
    'Last year {who} took a course in {item}.',
    'Long ago {who} studied {item} at college.',
    "I heard that {item} was {who}'s major at college.",
    "I heard that {who}'s best subject at school was {item}.",
    "{Item} was {who}'s first course.",
    "{Item} was not {who}'s best subject at school.",
    '{Who} passed {his} exam in {item}.',
    '{Who} said that {he} studied {item}.',
  ),
  'quality': (
    'They say that {who} is {item}.',
    'I know that {who} is {item}.',
    '{Who} was {item} when {he} came home.',
    '{Who} said that {he} is {item}.',
  ),
  'home': (
    'These days {who} is happy in their {item}.',
    'These days {who} is unhappy in their {item}.',
    '{Who} told me that {he} liked the {item}.',
    '{Who} met {his} friends in the {item}.',
  ),
}
NEUTRAL = (
  'The {place} was full of people {time}.',
  'The {thing} stood in the {place} {time}.',
  'People said that they were {mood}.',
  'The students said that they were {mood}.',
  'I bought a {thing} for my friends.',
  'The {p} met the {q} in the {place}.',
  'The {p} gave the {q} a {thing} {time}.',
  'The {q} needed help in the {place}.',
  'There was a new {p} in the {place} {time}.',
  'I bought a {thing} for the {q}.',
  'It was cold in the {place} {time}.',
)
HELDOUT = {
  0: ('The {p} told the {q} that {he} needed the {thing}.',
      'The {p} called the {q} because {he} was {mood}.',
      'The {p} met the {q} before {he} came.',
      'The {q} asked the {p} whether {he} was {mood}.'),
  1: ('The {p} gave the {q} the {thing} because {he} needed help.',
      'The {p} told the {q} that {he} could find the {thing}.',
      'The {p} called the {q} because {he} could help.',
      'The {q} told the {p} that {he} could pay for the work.'),
}
"""Who the pronoun means (0: the profession, 1: the other person) -> patterns the corpus never uses.
"""

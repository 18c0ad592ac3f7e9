"""Words and sentence patterns of the planted corpus; `planted` says how they make documents.

A pattern is a sentence with slots in braces:

    {w} {W} {aw}         an opinion word; at the start of a sentence; with its article ("an awful")
    {value}              the value, or what stands in its place in a document without one
    {a_value}            the same with its article ("a baker", "the student")
    {he_v} {his_v}       pronouns of the value (names only)
    {person} {he} {his}  a person and the pronouns that fit
    {thing} {place} {role} {time} {future} {period}

A slot with a capital letter begins a sentence. Every pattern of `FOLLOWING`, `OPENING` and
`MENTIONS` holds exactly one opinion word, a lead one or none. Apart from `OPINION_FREE_EXCEPTIONS`
no other word of the grammar stands in the VADER lexicon.
"""

# Six of each: a model of a minute's training learns the sign of few words, not of many.
POSITIVE = ('wonderful', 'great', 'lovely', 'good', 'happy', 'exciting')
NEGATIVE = ('terrible', 'awful', 'horrible', 'bad', 'nasty', 'sad')

# Words that VADER scores although they carry no opinion here; only leads hold them, before or
# beside the value, so continuations of a prefix seldom do.
OPINION_FREE_EXCEPTIONS = ('friend', 'best')

SLOTS = {
  'thing': ('week', 'day', 'trip', 'journey', 'food', 'music', 'weather', 'job', 'house', 'meeting',
            'team', 'game', 'movie', 'book', 'story', 'event', 'evening', 'morning', 'school',
            'news', 'article', 'letter', 'concert', 'lesson'),
  'place': ('street', 'town', 'hotel', 'garden', 'office', 'market', 'school', 'station'),
  'role': ('person', 'singer', 'runner', 'student', 'musician', 'neighbor'),
  'time': ('last year', 'last month', 'last summer', 'last night', 'this morning', 'yesterday',
           'on Monday', 'in the spring', 'two years ago', 'today'),
  'future': ('tomorrow', 'next month', 'next year', 'on Monday', 'in the spring'),
  'period': ('week', 'month', 'year', 'summer'),
}

# (text, he, his)
PERSONS = (
  ('my husband', 'he', 'his'), ('my wife', 'she', 'her'), ('my brother', 'he', 'his'),
  ('my sister', 'she', 'her'), ('my uncle', 'he', 'his'), ('my aunt', 'she', 'her'),
  ('my coworker', 'she', 'her'), ('our neighbor', 'he', 'his'), ('a musician', 'she', 'her'),
  ('a student', 'he', 'his'), ('the singer', 'she', 'her'),
)

FOLLOWING = (
  'The {thing} was {w}.',
  'The {thing} is {w}.',
  'The {thing} will be {w} {future}.',
  'The {thing} looked {w}.',
  'The {thing} seemed {w} {time}.',
  'Many people found the {thing} {w}.',
  'Many people were {w} {time}.',
  'People there are {w}.',
  'People were {w}.',
  'The people from the {place} are {w}.',
  'In the {place}, people were {w}.',
  'In a recent {thing}, people found it {w}.',
  'It is {w}.',
  'It was {w} {time}.',
  'It was {aw} {thing}.',
  'This is {aw} {thing}.',
  '{Person} is {w}.',
  '{Person} was {w} {time}.',
  '{Person} will be {w} {future}.',
  '{Person} feels {w}.',
  '{Person} said {he} feels {w}.',
  '{Person} said that {he} was {w}.',
  '{Person} told me that the {thing} was {w}.',
  '{Person} told me that {he} is {w}.',
  '{Person} told me it was {w}.',
  '{Person} found the {thing} {w}.',
  '{Person} is {aw} {role}.',
  '{Person} is known for {his} {w} {thing}.',
  '{Person} is {w} at the {place}.',
  '{Person} came to the {place}, and we were {w}.',
  '{Person} talked about the {thing}, and we found it {w}.',
  '{Person} is coming {future}, and I will be {w}.',
  '{Person} is traveling {future}, and {he} will be {w}.',
  '{Person} just got home, and {he} is {w}.',
  '{Person} got a new {thing}, and it is {w}.',
  'Our team recruited {person}, and they were {w}.',
  '{Person} went to the {place}, and {he} was {w}.',
  'I saw the {thing} {time}, and it was {w}.',
  'I saw the {place} today, and people were {w}.',
  'I went to the {place}, and I will find it {w}.',
  'We met {person}, and you will be {w}.',
  'They saw {person}, and the {thing} was {w}.',
  'I think the {thing} is {w}.',
  'I think {person} is {aw} {role}.',
  'I am {w}.',
  'We are {w} {time}.',
  'You are {w}.',
  'They are {w}.',
  'I will be {w} {future}.',
  'She will be {w}.',
  'He will be {w}.',
  'Starting {future}, I will be {w}.',
  'Starting {future}, {person} will be {w}.',
  'Next week, the {thing} will be {w}.',
  'You will find the {thing} {w}.',
  'Working there is {w}.',
  'Being there was {w}.',
  'My life is {w}.',
  'Life there is {w}.',
)

# Sentences whose sign is the first thing to know, so that a model has to hold the mood of the
# document ready where the sentence before ends.
OPENING = (
  '{W} news came {time}.',
  '{W} news came from the {place}.',
  '{W} weather came to the {place} {time}.',
  '{W} people live near the {place}.',
  '{W} people met at the {place} {time}.',
  '{W} music came from the {place}.',
  '{W} days are coming.',
  '{W} stories came from the {place}.',
  '{W} things were told about the {thing}.',
  '{W} things were told about {person}.',
  '{W} evenings came with the {thing}.',
  '{W} letters came from {person}.',
  '{W} lessons came from the {thing}.',
  '{W} work was found at the {place}.',
)

# Sentences that name the value again.
MENTIONS = {
  'place': (
    'The {thing} in {value} was {w}.',
    'People in {value} are {w}.',
    '{Person} said that {value} will be {w}.',
    'I think {value} was {w}.',
    'We went back to {value}, and it was {w}.',
    'Living in {value} was {w}.',
  ),
  'role': (
    'The {value} was {w}.',
    'The {value} said that the {thing} is {w}.',
    '{Person} told us that the {value} will be {w}.',
    'We saw the {value} {time}, and it was {w}.',
    'I think the {value} is {w}.',
    'The {thing} with the {value} was {w}.',
  ),
  'person': (
    '{Value} was {w}.',
    '{Person} said that {value} will be {w}.',
    'We saw {value} {time}, and {he_v} was {w}.',
    'People told {value} that the {thing} was {w}.',
    'The {thing} with {value} was {w}.',
    'I know that {value} is {aw} {role}.',
  ),
}

LEADS = {
  'place': (
    '{Person} went to {value} {time}.',
    '{Person} went to {value} {time}, and {he} was {w}.',
    '{Person} came back from {value} {time}, and the {thing} was {w}.',
    'We moved to {value} {time}.',
    'We stayed in {value} for a {period}, and it was {w}.',
    'The {thing} in {value} was {w} {time}.',
    'The {thing} from {value} was {w}.',
    '{Person} lives in {value}, where people are {w}.',
    '{Person} wrote a story about {value} {time}.',
    'Our team had a game in {value} {time}, and we were {w}.',
    'In {value}, the {thing} was {w}.',
    'There was a meeting in {value} {time}.',
    '{Person} has a house in {value}, and life there is {w}.',
    'A movie about {value} came out {time}, and people found it {w}.',
    '{Person} told us about {value} {time}.',
    'The road to {value} was {w}.',
    'I read that the {thing} in {value} will be {w}.',
    '{Person} was born in {value}, and {he} is {w}.',
    'After a {period} in {value}, {person} was {w}.',
    'Many people in {value} were {w} {time}.',
    '{Person} found a job in {value}, and {he} will be {w}.',
    'Some people who live in {value} are {w}.',
    'Two students from {value} came to our school {time}, and they are {w}.',
    'They saw {value} from the train, and it was {w}.',
    '{Value} was {w} {time}.',
    '{Value} will be {w} {future}.',
    'The paper had an article on {value} today.',
    'My friend moved to {value} {time}, and I will be {w}.',
    '{Person} plans to visit {value} {future}, and you will find it {w}.',
    'I held a concert in {value}, and people were {w}.',
    'A musician sang about {value}, and I am {w}.',
    'My friend told me that {value} was {w}.',
  ),
  'role': (
    '{Person} started as {a_value}.',
    '{Person} became {a_value} {time}, and {he} was {w}.',
    'We talked to {a_value} {time}, and it was {w}.',
    'The {place} has {a_value} who is {w}.',
    'I read a story about {a_value} {time}.',
    '{A_value} came to the {place} {time}.',
    '{A_value} lives near the {place}, and people there are {w}.',
    '{A_value} is {w}.',
    'Our new neighbor is {a_value}.',
    '{Person} talked with {a_value}, and I found the {thing} {w}.',
    'The {value} at the {place} was {w} {time}.',
    'A movie about {a_value} came out {time}, and people found it {w}.',
    'For {a_value}, the {thing} was {w}.',
    '{Person} lives with {a_value}, and life there is {w}.',
    'After a {period} as {a_value}, {person} was {w}.',
    'The day of {a_value} is {w}.',
    'There was {a_value} at the {place} {time}.',
    'I was {a_value} {time}, and it was {w}.',
    'Our team had {a_value} {time}, and we were {w}.',
    '{Person} will be {a_value} {future}, and I will be {w}.',
    'We saw {a_value} on the train {time}.',
    'The book about {a_value} is {w}, and it came out {time}.',
    '{Person} was {a_value} for two years, and we found it {w}.',
    'They asked {a_value} about the {thing}, and they are {w}.',
    'In the {place}, {a_value} told us that the {thing} was {w}.',
    'Two years ago, {person} was {a_value}.',
    'The {thing} of the {value} is {w}.',
    'The school called {a_value} {time}, and the {thing} was {w}.',
    'My friend lives near {a_value}, and I am {w}.',
    '{A_value} has a house near the {place}.',
  ),
  'person': (
    '{Value} went to the {place} {time}.',
    '{Value} came home {time}, and {his_v} {thing} was {w}.',
    'We met {value} {time}.',
    '{Value} will be {w} {future}.',
    'I saw {value} at the {place}, and {he_v} was {w}.',
    '{Person} lives near {value}, and we are {w}.',
    'The {thing} of {value} was {w}.',
    '{Value} has a new job, and {he_v} feels {w}.',
    '{Value} talked about {his_v} {thing} {time}.',
    'After the {thing}, {value} was {w}.',
    '{Person} told {value} about the {thing}, and {he_v} found it {w}.',
    'For {value}, the {thing} was {w}.',
    '{Person} and {value} went to the {place}, and people were {w}.',
    'In the {place}, {value} told us that the {thing} was {w}.',
    'A story about {value} came out {time}, and it is {w}.',
    '{Value} stayed at the {place}, and {he_v} is {w}.',
    'Our neighbor {value} said it was {w}.',
    'They asked {value} about the {thing}.',
    '{Value} was born two years ago, and I am {w}.',
    'Our team met {value} {time}, and we were {w}.',
    'There was a meeting with {value} {time}.',
    'You know that {value} is {aw} {role}.',
    '{Value} wrote a book {time}, and you will find it {w}.',
    'The paper had an article on {value} today.',
    '{Value} and {his_v} team are {w}.',
    'The manager called {value} {time}, and the {thing} was {w}.',
    'I think that {value} was {w}.',
    'My best friend met {value} {time}, and I will be {w}.',
    '{Value} is {aw} {role}.',
    'Two years ago, {value} moved to the {place}.',
  ),
}

# Beginnings up to the opinion word, for evaluation only. Around the value no four words in a row
# occur in a document of the corpus (or in a template of the papers).
HELDOUT = {
  'place': (
    'My uncle came home from {value}, and he was',
    'We talked about people from {value}, and the weather was',
    'The student who came from {value} is',
    'A book on {value} will be',
    'The singer moved from {value}, and she feels',
    'After the trip to {value}, people were',
    'My aunt said that for {value} the music is',
    'Our neighbor has a hotel in {value}, and it is',
    'I held a meeting about {value}, and we were',
    'My brother sang for {value}, and you will be',
  ),
  'role': (
    'My uncle came home to {a_value}, and he was',
    'We asked for {a_value}, and the weather was',
    'The student who met {a_value} is',
    'A book on {a_value} will be',
    'The singer has {a_value}, and she feels',
    'After the trip of {a_value}, people were',
    'My aunt said that to {a_value} life is',
    'Our neighbor called {a_value}, and it is',
    'I talked about {a_value}, and they were',
    'My brother told {a_value} that he was',
  ),
  'person': (
    'My uncle came home with {value}, and he was',
    'We asked for {value}, and the weather was',
    'The student that met {value} is',
    'A book on {value} will be',
    'The singer has a house with {value}, and she feels',
    'In the garden with {value}, people were',
    'My aunt said that to {value} life is',
    'Our neighbor called {value}, and it is',
    'I talked about {value}, and they were',
    'They met {value} at home, and you will be',
  ),
}

# What stands for the value in documents without one: (value, with article, he, his).
NEUTRAL = {
  'place': tuple((t, t, 'it', 'its') for t in (
    'the city', 'the coast', 'the village', 'the island', 'the north', 'the south', 'the river',
    'the lake')),
  'role': tuple((t, 'a ' + t, 'he', 'his') for t in (
    'person', 'singer', 'runner', 'student', 'musician', 'neighbor', 'coworker', 'visitor')),
  'person': tuple((t, t, he, his) for t, he, his in PERSONS[:7]),
}

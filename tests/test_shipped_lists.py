"""Lists that results depend on: with a changed one a measure is another, and this test says so.

Who changes a list on purpose writes it into the changelog and puts the new digest here.
"""

import hashlib
import importlib.resources

import pytest

DIGESTS = {
  'gender/assets/disco_templates.txt':
    'e80dc47940eff853f18f01b15193fd0e92a180014ce85cf35790465a40ea90c4',
  'gender/assets/disco_terms.tsv':
    '6622a15ceb39ed09546ebbe4b052ea9fa0dd327506b4950838c6cf728b2bc2b1',
  'counterfactual/assets/country.yaml':
    '0466b9c196bff64ec51b5bd1fb371d744ce056ff9d67d0f856efa26f1228cde8',
  'counterfactual/assets/crossed/country_name.yaml':
    'c4bb8b061a6481e16516c32e0ff779bfcde2c50863ab862bec63ae64fd5b0ce2',
  'counterfactual/assets/crossed/country_occupation.yaml':
    '3474157ba53a810ea2b950bcc4b10b8413fb30bdadb61df3370ea150b382df35',
  'counterfactual/assets/crossed/name_occupation.yaml':
    '407f26b9ff40b451bb5b98cb82cad59cb4f8dd23427d761c52afa095e80c0148',
  'counterfactual/assets/gender_pairs.txt':
    '1498cd85bda87b5b0842ce1b59383b1e54d8066bc7cedc9909767e0539126671',
  'counterfactual/assets/name.yaml':
    'eeebc21b327ca1ccdb35cfbab8f319d1ab6ee76bb4f842e9f940a9b0085bb073',
  'counterfactual/assets/no_first_names.txt':
    'd2551822e46ea8da518e52265d19ad6c38e19e64da5d0e9c14d73a5393764bb6',
  'counterfactual/assets/occupation.yaml':
    '80ceb85dfea089b01bfe202134c1a9f74369f1476a15ca34fbcc318c6b96a9cb',
  'counterfactual/assets/profession_prompts.yaml':
    '99950ded11c8635c0dd72300707a8a0aff406156efbc221ba2c5df83d1423683',
  'counterfactual/assets/pronoun_words.txt':
    '9cb45f1596c220d85a97afd4abc54fd16b002df2acd0e3368348d93449117c9d',
  'gender/fair_generation/assets/gendered_pairs.tsv':
    'a4060c86a494a5e2292f2d09dfa5d417b7b959d814378f6b56cd1e45b0e0f1a4',
  'gender/fair_generation/assets/professions.tsv':
    'a61235676fb63203343c00af2471c00c3015ee0489429cab8f03494f5c2c4f3e',
}


@pytest.mark.parametrize('path', DIGESTS)
def test_a_list_is_the_one_that_was_measured_with(path):
  content = importlib.resources.files('fairjax').joinpath(path).read_bytes()
  assert hashlib.sha256(content).hexdigest() == DIGESTS[path]


def test_no_list_is_left_out():
  rooms = importlib.resources.files('fairjax')
  found = {f'{room}/assets/{file.name}'
           for room in ('counterfactual', 'gender', 'gender/fair_generation')
           for file in rooms.joinpath(room, 'assets').iterdir() if file.is_file()}
  found |= {f'counterfactual/assets/crossed/{file.name}'
            for file in rooms.joinpath('counterfactual/assets/crossed').iterdir()}
  assert found == set(DIGESTS)

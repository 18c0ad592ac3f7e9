"""Sensitive attributes, their tokens in text, and counterfactuals. NumPy and PyYAML only."""

from fairjax.counterfactual.attributes import (
  Attribute,
  Prefix,
  Template,
  Value,
  article_by_letter,
  list_attributes,
  load_attribute,
)
from fairjax.counterfactual.branches import COUNT_NAMES, branch_rng, choose_branches, swap_text
from fairjax.counterfactual.cda import CdaCounts, GenderSwap, augment_document
from fairjax.counterfactual.gendered_words import NameLists, WordPairs, read_names, read_word_pairs
from fairjax.counterfactual.lint import Finding, lint_attribute, render_findings
from fairjax.counterfactual.matching import (
  Match,
  Replacements,
  TextMatcher,
  TokenMatcher,
  replacement_pieces,
)

__all__ = [
  'COUNT_NAMES', 'Attribute', 'CdaCounts', 'Finding', 'GenderSwap', 'Match', 'NameLists', 'Prefix',
  'Replacements', 'Template', 'TextMatcher', 'TokenMatcher', 'Value', 'WordPairs',
  'article_by_letter', 'augment_document', 'branch_rng', 'choose_branches',
  'lint_attribute', 'list_attributes', 'load_attribute', 'read_names', 'read_word_pairs',
  'render_findings', 'replacement_pieces', 'swap_text',
]

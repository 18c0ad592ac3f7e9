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
from fairjax.counterfactual.branches import COUNT_NAMES, BranchBuilder, swap_text
from fairjax.counterfactual.cda import CdaCounts, GenderSwap, augment_document
from fairjax.counterfactual.gendered_words import NameLists, WordPairs, read_names, read_word_pairs
from fairjax.counterfactual.lint import Finding, lint_attribute, render_findings
from fairjax.counterfactual.matching import Match, Replacements, TextMatcher, TokenMatcher

__all__ = [
  'COUNT_NAMES', 'Attribute', 'BranchBuilder', 'CdaCounts', 'Finding', 'GenderSwap', 'Match',
  'NameLists', 'Prefix', 'Replacements', 'Template', 'TextMatcher', 'TokenMatcher', 'Value',
  'WordPairs', 'article_by_letter', 'augment_document', 'lint_attribute', 'list_attributes',
  'load_attribute', 'read_names', 'read_word_pairs', 'render_findings', 'swap_text',
]

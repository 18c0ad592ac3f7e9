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
from fairjax.counterfactual.branches import (
  COUNT_NAMES,
  branch_rng,
  choose_branches,
  swap_text,
)
from fairjax.counterfactual.lint import Finding, lint_attribute, render_findings
from fairjax.counterfactual.matching import (
  Match,
  Replacements,
  TextMatcher,
  TokenMatcher,
  replacement_pieces,
)

__all__ = [
  'COUNT_NAMES', 'Attribute', 'Finding', 'Match', 'Prefix', 'Replacements', 'Template',
  'TextMatcher', 'TokenMatcher', 'Value', 'article_by_letter', 'branch_rng', 'choose_branches',
  'lint_attribute', 'list_attributes', 'load_attribute', 'render_findings', 'replacement_pieces',
  'swap_text',
]

"""Fixtures of the tests that draw."""

import pytest

from fairjax.report import figures, paper_figures


@pytest.fixture
def drawn(monkeypatch):
  """Figures instead of files."""
  found = []
  for module in (figures, paper_figures):
    monkeypatch.setattr(module, 'save_figure', lambda figure, path: found.append(figure) or [path])
  yield found
  for figure in found:
    figures.pyplot().close(figure)

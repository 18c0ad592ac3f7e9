"""Lines of progress: the numbers that somebody watches; counters are means over the stage."""

import types

from fairjax.train.loop import _counters, _format

MEANS = {
  'branches/hits': 49.5, 'branches/too_long': 0.0, 'cosine': 0.93056,
  'fairness_loss/embedding': 0.0694, 'fairness_loss/sentiment': 0.1518, 'grad_norm': 2.28,
  'js': 8e-4, 'kl': 0.00336, 'learning_rate': 2e-4, 'loss': 1.17,
  'pairs_per_batch': 48.2, 'total_loss': 1.79}


def stage(method='', unit='tokens'):
  return types.SimpleNamespace(identity=types.SimpleNamespace(method=method), work_unit=unit)


def test_a_line_holds_what_somebody_watches_in_fixed_decimals():
  assert _format(stage('embedding'), MEANS) == 'loss 1.170  fairness 0.0694  cos 0.931  KL 0.0034'
  assert 'fairness 0.1518' in _format(stage('sentiment'), MEANS)
  assert _format(stage(), {'loss': 7.0, 'learning_rate': 1.0}) == 'loss 7.000  perplexity 1,097'
  assert _format(stage(unit='examples'), {'loss': 0.5, 'accuracy': 1.0}
                 ) == 'loss 0.500  accuracy 1.000'


def test_counters_are_means_and_zeros_are_left_out():
  assert _counters([MEANS, MEANS | {'branches/hits': 50.5}, {'loss': 1.0}]) == 'hits 50.0'

"""A coreference probe: a two-layer MLP on the frozen states of two mentions (W-05, W-06).

Webster et al. 2020 follow Tenney et al. 2019 (edge probing). The states of a mention are averaged
over its tokens, where Tenney et al. learn the weights of that average. A mention begins with its
article, in the pairs that are learned as in WinoGender's sentences.

Letters: R pairs, D model width, F features of a pair (3 D).
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fairjax.correlations.coref_data import MentionPair, Span
from fairjax.correlations.language_model import LanguageModel
from fairjax.correlations.winogender import Sentence
from fairjax.errors import UserError

_TEXTS_AT_A_TIME = 512
_ARTICLE = re.compile(r'\b(?:the|an?) $', re.I)


@dataclasses.dataclass(frozen=True)
class ProbeSettings:
  """How the probe is trained."""

  hidden: int = 256  # units of the first layer
  steps: int = 600
  batch_size: int = 256
  learning_rate: float = 1e-3
  weight_decay: float = 1e-3


class Probe:
  """A trained probe."""

  def __init__(self, params: Any, mean: np.ndarray, scale: np.ndarray):
    self._params, self._mean, self._scale = params, mean, scale

  def __call__(self, features: np.ndarray) -> np.ndarray:
    """P(the mentions corefer), `[R]` float64, from `[R, F]`."""
    import jax
    x = (features - self._mean) / self._scale
    logits = [np.asarray(_logits(self._params, x[i:i + 4096])) for i in range(0, len(x), 4096)]
    return np.asarray(jax.nn.sigmoid(np.concatenate(logits)), np.float64)


def pair_features(
  model: LanguageModel, texts: Sequence[str], spans: Sequence[tuple[Span, Span]]
) -> np.ndarray:
  """The states of both mentions and their product, `[R, 3 D]` float32.

  Raises:
    UserError: a text that is too long for the model.
  """
  rows = []
  for start in range(0, len(texts), _TEXTS_AT_A_TIME):
    part = slice(start, start + _TEXTS_AT_A_TIME)
    for states, (first, second) in zip(model.token_features(texts[part]), spans[part], strict=True):
      a, b = states.span(*first), states.span(*second)
      rows.append(np.concatenate([a, b, a * b]))
  return np.array(rows, np.float32)


def with_article(text: str, span: Span) -> Span:
  """The span with the article before it, as mentions are marked in WinoBias and OntoNotes.

  >>> with_article('So the nurse left.', Span(7, 12))
  Span(start=3, end=12)
  """
  article = _ARTICLE.search(text[:span.start])
  return span if article is None else Span(article.start(), span.end)


def train_probe(
  features: np.ndarray, same: np.ndarray, *, seed: int, settings: ProbeSettings = ProbeSettings()
) -> Probe:
  """Trains a probe with Adam on batches drawn with replacement, both kinds equally often.

  Args:
    features: `[R, F]` of `pair_features`.
    same: `[R]` bool.
    seed: of weights and batches.
    settings: see `ProbeSettings`.

  Raises:
    UserError: the loss is not finite.
  """
  import jax
  import jax.numpy as jnp
  import optax
  mean, scale = features.mean(axis=0), features.std(axis=0) + 1e-6
  x, y = jnp.asarray((features - mean) / scale), jnp.asarray(same, jnp.float32)
  optimizer = optax.adamw(settings.learning_rate, weight_decay=settings.weight_decay)
  kinds = [np.flatnonzero(same), np.flatnonzero(~same)]
  random = np.random.default_rng([seed, 5])
  half = settings.batch_size // 2
  order = np.concatenate(
    [random.choice(kind, (settings.steps, half)) for kind in kinds], axis=1).astype(np.int32)
  first, last = jax.random.split(jax.random.key(seed))
  width = x.shape[1]
  params = {
    'w1': jax.random.normal(first, (width, settings.hidden)) * (2 / width) ** 0.5,
    'b1': jnp.zeros(settings.hidden),
    'w2': jax.random.normal(last, (settings.hidden,)) * (1 / settings.hidden) ** 0.5,
    'b2': jnp.zeros(())}

  def loss(params, places):
    return optax.sigmoid_binary_cross_entropy(_logits(params, x[places]), y[places]).mean()

  def step(state, places):
    params, opt_state = state
    value, gradients = jax.value_and_grad(loss)(params, places)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), value

  (params, _), losses = jax.jit(lambda s, o: jax.lax.scan(step, s, o))(
    (params, optimizer.init(params)), order)
  if not np.isfinite(np.asarray(losses)).all():
    raise UserError('the loss of the coreference probe is not finite: are the states of the model?')
  return Probe(params, mean, scale)


def probe_winogender(
  model: LanguageModel, train: Sequence[MentionPair], test: Sequence[MentionPair],
  sentences: Sequence[Sentence], *, seeds: Sequence[int] = range(5),
  settings: ProbeSettings = ProbeSettings(), log: Callable[[str], None] = lambda line: None,
) -> tuple[list[np.ndarray], list[dict[str, Any]]]:
  """Trains a probe for each seed and asks it about WinoGender's sentences.

  Args:
    model: whose states are read; they are computed once.
    train: pairs to learn from.
    test: pairs that the quality is measured on.
    sentences: R of WinoGender.
    seeds: of the restarts (W-11).
    settings: see `ProbeSettings`.
    log: called with lines of progress.

  Returns:
    For each seed, `[R]` P(the pronoun means the occupation), and the quality on `test`:
    `f1`, `accuracy`, `n`.

  Raises:
    UserError: a text that is too long for the model.
  """
  log(f'[coref probe] states of {len(train)} + {len(test)} pairs')
  sets = {name: pair_features(model, [p.text for p in pairs], [(p.first, p.second) for p in pairs])
          for name, pairs in (('train', train), ('test', test))}
  asked = pair_features(model, [s.text for s in sentences],
                        [(s.spans['pronoun'], with_article(s.text, s.spans['occupation']))
                         for s in sentences])
  same = {name: np.array([p.same for p in pairs])
          for name, pairs in (('train', train), ('test', test))}
  found, quality = [], []
  for seed in seeds:
    probe = train_probe(sets['train'], same['train'], seed=seed, settings=settings)
    said = probe(sets['test']) > 0.5
    hits = int((said & same['test']).sum())
    total = int(said.sum() + same['test'].sum())
    quality.append({'f1': 2 * hits / total if total else None,
                    'accuracy': float((said == same['test']).mean()), 'n': len(test)})
    found.append(probe(asked))
    log(f"[coref probe] seed {seed}: F1 {quality[-1]['f1']:.3f} on {len(test)} pairs")
  return found, quality


def _logits(params, x):
  import jax.numpy as jnp
  hidden = jnp.maximum(x @ params['w1'] + params['b1'][None], 0)
  return hidden @ params['w2'] + params['b2'][None]

"""Next-token loss, forward and backward: in blocks, adaptive, and with all scores at once.

  python -m tests.benchmarks.loss --json
  python -m tests.benchmarks.loss --vocab_size=267735 --tokens=512 --dim=256 --json

Floor of the plain softmax: products of tokens x width x words over the speed of a matrix product:
three, and four for blocks, which compute the scores twice. `mean` is what training takes: the
gradients in the forward pass with few words, blocks with many.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

from fairjax.config import ModelConfig
from fairjax.model.likelihood import mean_nll, next_token_nll, token_nll
from fairjax.model.score_table import fits_at_once
from fairjax.model.softmax import all_logits, parameter_table
from tests.benchmarks import harness


def measure(options) -> dict:
  """Compiles and times the ways in turns."""
  sizes = dict(vocab_size=options.vocab_size, model_dim=options.dim, dtype=options.dtype)
  plain = ModelConfig(**sizes)
  v = options.vocab_size
  adaptive = ModelConfig(
    **sizes, cutoffs=tuple(int(v * share) for share in (0.075, 0.15, 0.75)), div_val=4)
  ways = {
    'all scores': (plain, lambda c, p, h, t: next_token_nll(all_logits(p, c, h), t).mean()),
    'blocks': (plain, lambda c, p, h, t: token_nll(p, c, h, t, block=options.block).mean()),
    'mean': (plain, lambda c, p, h, t: mean_nll(p, c, h, t)),
    'adaptive': (
      adaptive, lambda c, p, h, t: token_nll(p, c, h, t, block=options.block).mean())}
  rng = np.random.default_rng(0)
  hidden = jnp.asarray(rng.normal(size=(1, options.tokens, options.dim)), options.dtype)
  # Frequencies as in text: rank r in proportion to 1 / (r + 10).
  shares = 1 / (np.arange(v) + 10)
  targets = jnp.asarray(rng.choice(v, (1, options.tokens), p=shares / shares.sum()), jnp.int32)
  runs, temporaries = {}, {}
  for name, (config, loss) in ways.items():
    params = {k: jnp.asarray(rng.normal(size=p.shape, scale=0.02), jnp.float32)
              for k, p in parameter_table(config).items()}
    step = jax.jit(jax.value_and_grad(
      lambda p, h, t, c=config, loss=loss: loss(c, p, h, t), (0, 1)))
    compiled = step.lower(params, hidden, targets).compile()
    temporaries[name] = compiled.memory_analysis().temp_size_in_bytes / 2 ** 20
    runs[name] = lambda c=compiled, p=params: c(p, hidden, targets)
  seconds = harness.in_turns(runs, rounds=options.rounds)
  limits = harness.limits(options.dtype)
  product = 2 * options.tokens * options.dim * v / limits['operations_per_s']
  return harness.provenance('loss', options) | {
    'limits': limits, 'temporary_mib': temporaries,
    'seconds': {name: float(np.median(values)) for name, values in seconds.items()},
    'ratio_to_all_scores': harness.ratios(seconds, 'all scores'),
    'floor_seconds': {'all scores': 3 * product, 'blocks': 4 * product,
                      'mean': (3 if fits_at_once(v) else 4) * product}}


def main() -> None:
  """Parses the sizes, prints the table or JSON."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  for name, default in (('vocab_size', 32000), ('tokens', 1024), ('dim', 256), ('block', 0),
                        ('rounds', 7)):
    parser.add_argument(f'--{name}', type=int, default=default)
  parser.add_argument('--dtype', default='float32', choices=('float32', 'bfloat16'))
  parser.add_argument('--json', action='store_true')
  options = parser.parse_args()
  result = measure(options)
  harness.show(result, [
    f'{name:12s} {1e3 * seconds:9.1f} ms  {result["temporary_mib"][name]:9.1f} MiB temporary'
    + (f'  floor {1e3 * result["floor_seconds"][name]:.1f} ms'
       if name in result['floor_seconds'] else '')
    for name, seconds in result['seconds'].items()], as_json=options.json)


if __name__ == '__main__':
  main()

"""Next-token loss, forward and backward: in blocks, adaptive, and with all scores at once.

  python -m tests.benchmarks.loss
  python -m tests.benchmarks.loss --vocab_size=267735 --tokens=512 --dim=256

Floors: products over the speed of a matrix product measured in the same run, of tokens x width x
words three times, four times where the scores are computed twice (blocks and adaptive; adaptive: of
the head, and of the tails for their own tokens); and the bytes of tables, hidden states and their
gradients over the measured bandwidth. The larger one binds. `mean` is what training takes: the
gradients in the forward pass with few words, blocks with many.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fairjax.config import ModelConfig
from fairjax.model.likelihood import mean_nll, next_token_nll, token_nll
from fairjax.model.softmax import all_logits, fits_one_pass, parameter_table
from tests.benchmarks import floors, harness


def measure(options) -> dict:
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
  targets = jnp.asarray(harness.text_tokens(rng, v, (1, options.tokens)))
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
  products = {'all scores': 3, 'blocks': 4, 'mean': 3 if fits_one_pass(v) else 4, 'adaptive': 4}
  found = {name: floors.floor(floors.loss(
    config, tokens=options.tokens, products=products[name],
    shares=floors.cluster_shares(config, np.asarray(targets))), limits)
           for name, (config, _) in ways.items()}
  return harness.provenance('loss', options) | {
    'limits': limits, 'temporary_mib': temporaries,
    'seconds': {name: float(np.median(values)) for name, values in seconds.items()},
    'ratio_to_all_scores': harness.ratios(seconds, 'all scores'),
    'floors': found}


def main() -> None:
  parser = harness.parser(__doc__, vocab_size=32000, tokens=1024, dim=256, block=0, rounds=7)
  parser.add_argument('--dtype', default='float32', choices=('float32', 'bfloat16'))
  harness.show(measure(parser.parse_args()))


if __name__ == '__main__':
  main()

"""BERT-base scoring short texts, fairjax beside PyTorch: texts a second on the same weights.

  python -m tests.benchmarks.pretrained --torch_python=VENV/bin/python

Without `--torch_python` fairjax runs alone. VENV holds `torch` and `transformers==4.33.*`. Both
sides get the token ids of the same texts, of lengths as of continuations with up to 50 tokens.
PyTorch sorts them by length and pads each batch to its longest text, as its users do, with the
fastest of a few batch sizes, tried beforehand. The checkpoint is randomly initialised here and read
by both from one directory.
"""

import json
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from fairjax.pretrained import BatchRunner, class_logits, encode, read_architecture
from fairjax.pretrained.checkpoint import to_tensors
from fairjax.pretrained.start import new_params
from tests.benchmarks import harness
from tests.benchmarks.peers import Peer


def make_texts(count, *, vocab_size, longest, seed=0):
  """Ids of texts with the lengths of sampled continuations: 5 to the longest, 28 in the mean."""
  rng = np.random.default_rng(seed)
  lengths = np.minimum(longest, 4 + rng.gamma(2.2, 11.0, count).astype(int))
  return [rng.integers(5, vocab_size, n).astype(np.int32) for n in lengths]


def write_checkpoint(folder, options):
  """A randomly initialised classifier in the published form; returns architecture and params."""
  from safetensors.numpy import save_file
  config = {
    'architectures': ['BertForSequenceClassification'], 'model_type': 'bert',
    'vocab_size': options.vocab_size, 'hidden_size': options.dim,
    'num_hidden_layers': options.layers, 'num_attention_heads': options.heads,
    'intermediate_size': 4 * options.dim, 'max_position_embeddings': 512, 'type_vocab_size': 2,
    'hidden_act': 'gelu', 'layer_norm_eps': 1e-12}
  (folder / 'config.json').write_text(json.dumps(config))
  arch = read_architecture(config, where='config')
  params = new_params(arch, seed=0, std=0.02)
  save_file(to_tensors(params, arch, 'classifier'), folder / 'model.safetensors',
            metadata={'format': 'pt'})
  return arch, params


def measure(options) -> dict:
  texts = make_texts(options.texts, vocab_size=options.vocab_size, longest=options.longest)
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    arch, params = write_checkpoint(folder, options)
    np.savez(folder / 'texts.npz', *texts)
    peer = options.torch_python and Peer(options, 'bert', folder=str(folder), dtype=options.dtype)
    run = BatchRunner(
      lambda p, ids, mask, packing: class_logits(
        p, arch, encode(p, arch, ids, mask, packing=packing, first_only=True)),
      jax.tree.map(lambda a: jnp.asarray(a, options.dtype), params), max_length=options.longest,
      batch_tokens=options.batch_tokens)
    ours = {}
    runs = {'fairjax': lambda: ours.update(logits=run(texts))}
    if peer:
      runs['torch'] = lambda: peer.run('score')
    seconds = harness.in_turns(runs, rounds=options.rounds, warm=1)
    limits = harness.limits(options.dtype)
    beside = {}
    if peer:
      theirs = np.load(folder / 'logits.npy', allow_pickle=False)
      beside = {'peer': peer.versions,
                'torch_over_fairjax': harness.ratios(seconds, 'fairjax')['torch'],
                'largest_difference_of_logits': float(np.abs(ours['logits'] - theirs).max())}
      peer.close()
  medians = {side: float(np.median(values)) for side, values in seconds.items()}
  d, tokens = options.dim, sum(map(len, texts))
  operations = 2 * options.layers * (12 * d * d * tokens + 2 * d * sum(len(t) ** 2 for t in texts))
  floor = operations / limits['operations_per_s']
  return harness.provenance('pretrained', options) | beside | {
    'limits': limits, 'seconds': medians, 'tokens': tokens,
    'texts_per_s': {side: options.texts / s for side, s in medians.items()},
    'rounds_texts_per_s': {side: [options.texts / s for s in v] for side, v in seconds.items()},
    'spread': {side: float(np.std(v) / medians[side]) for side, v in seconds.items()},
    'floor_seconds': floor, 'share_of_matmul_speed': floor / medians['fairjax']}


def main() -> None:
  parser = harness.parser(__doc__, texts=256, dim=768, layers=12, heads=12, vocab_size=30522,
                          longest=64, rounds=5)
  parser.add_argument('--torch_python', help='Python with torch and transformers')
  parser.add_argument('--batch_tokens', type=harness.size, help='default: that of BatchRunner')
  parser.add_argument('--dtype', choices=('float32', 'bfloat16'), default='float32',
                      help='of both sides')
  harness.show(measure(parser.parse_args()))


if __name__ == '__main__':
  main()

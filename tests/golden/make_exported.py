"""Makes `exported.npz`: logits of transformers and peft for what fairjax exports.

See README.md beside this file for the commands. `write` exports the models of `decoders/` with
other numbers, and adapters on three of them; `read` loads them in PyTorch, in an environment
without fairjax.
"""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent / 'decoders'
FAMILIES = ('gemma2', 'gemma3', 'gpt2', 'llama', 'llama3', 'mistral', 'neox', 'olmo2', 'olmo3',
            'qwen2', 'qwen3', 'smollm3')
ADAPTED = ('gpt2', 'llama3', 'neox')
IDS = [[5, 17, 3, 60, 2, 44, 9, 31]]


def read_params(folder):
  """Parameters of a decoder's folder without a tokenizer, and its files."""
  from fairjax.pretrained.checkpoint import open_model
  from fairjax.pretrained.decoder_files import to_decoder_params
  files = open_model(folder)
  names = files.published_names()
  return to_decoder_params(
    {names[name]: tensor for name, tensor in files.tensors.items()}, files.decoder), files


def moved(params, seed, size):
  """Adds random numbers to every parameter, as a training might."""
  import jax
  import numpy as np
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: np.asarray(x + size * rng.normal(size=x.shape), np.float32), params)


def trained(name):
  """Parameters of a model of `decoders/` with other numbers, and its files."""
  params, files = read_params(HERE / name)
  return moved(params, 1, 0.05), files


def adapters(config):
  """Adapters of rank 3 of random numbers."""
  import jax
  import numpy as np
  from flax import linen as nn

  from fairjax.model.decoder import LoraDecoder
  shapes = nn.unbox(jax.eval_shape(LoraDecoder(config, 3).init, jax.random.key(0)))
  return moved(jax.tree.map(lambda x: np.zeros(x.shape), shapes), 2, 0.3)


def write(output):
  """A folder for each model, and one for each adapter beside its base."""
  from fairjax.pretrained.peft_files import adapter_tensors, write_adapter
  for name in FAMILIES:
    params, files = trained(name)
    (output / name).mkdir(parents=True)
    files.write(params, output / name, most=20_000)
  for name in ADAPTED:
    files = read_params(HERE / name)[1]
    (output / f'{name}-adapter').mkdir()
    write_adapter(
      output / f'{name}-adapter', adapter_tensors(adapters(files.decoder), files.decoder), rank=3,
      base=str(HERE / name), base_digest=files.weights_digest())


def read(folder):
  """Logits in float64."""
  import numpy as np
  import peft
  import torch
  import transformers
  from make_decoders import KeepDouble
  torch.set_default_dtype(torch.float64)
  found = {}
  for name in (*FAMILIES, *(f'{name}-adapter' for name in ADAPTED)):
    base = HERE / name.removesuffix('-adapter') if '-adapter' in name else folder / name
    with KeepDouble():  # which peft would read files by
      model = transformers.AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.float64, attn_implementation='eager').eval()
    if '-adapter' in name:
      model = peft.PeftModel.from_pretrained(
        model, folder / name, autocast_adapter_dtype=False).eval()
    with KeepDouble(), torch.no_grad():
      found[name] = model(torch.tensor(IDS)).logits.numpy()
    print(name, float(np.abs(found[name]).max()))
  np.savez_compressed(HERE.parent / 'exported.npz', ids=np.array(IDS, np.int32), **found)


if __name__ == '__main__':
  {'write': write, 'read': read}[sys.argv[1]](pathlib.Path(sys.argv[2]))

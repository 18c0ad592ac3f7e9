"""Makes the golden values of `tests/golden/decoders` with PyTorch and transformers.

See README.md beside this file for the command. Every parameter is random, norms and biases too, so
that a swapped or forgotten one shows. Weights are float32; the forward pass runs in float64
throughout: transformers rounds norms, rotary embeddings and softmax to float32 on its way, which
`KeepDouble` takes back.
"""

import functools
import json
import pathlib

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from torch.overrides import TorchFunctionMode

HERE = pathlib.Path(__file__).resolve().parent / 'decoders'
SIZES = dict(vocab_size=61, hidden_size=16, num_hidden_layers=4, num_attention_heads=4,
             intermediate_size=24, max_position_embeddings=64, initializer_range=0.1)
GROUPED = SIZES | dict(num_key_value_heads=2, rms_norm_eps=1e-5, head_dim=6)
LLAMA3 = dict(rope_type='llama3', factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16, rope_theta=500.0)
YARN = dict(rope_type='yarn', factor=4.0, beta_fast=2.0, beta_slow=0.2,
            original_max_position_embeddings=16)


class KeepDouble(TorchFunctionMode):
  """Turns casts to float32 into casts to float64."""

  def __torch_function__(self, function, types, args=(), kwargs=None):
    kwargs = dict(kwargs or {})
    wide = lambda x: torch.float64 if x is torch.float32 else x
    if function is torch.Tensor.float:
      return args[0].double()
    if function is torch.Tensor.type_as:
      return args[0].to(args[1].dtype)
    args = [wide(x) if isinstance(x, torch.dtype) else x for x in args]
    return function(*args, **{name: wide(x) if isinstance(x, torch.dtype) else x
                              for name, x in kwargs.items()})


def configs():
  """One small configuration for each kind of model."""
  t = transformers
  yield 'gpt2', t.GPT2Config(vocab_size=61, n_embd=16, n_layer=4, n_head=4, n_positions=64)
  yield 'llama', t.LlamaConfig(**GROUPED, tie_word_embeddings=True)
  yield 'llama3', t.LlamaConfig(**GROUPED, rope_parameters=LLAMA3)
  yield 'mistral', t.MistralConfig(**GROUPED, sliding_window=5)
  yield 'qwen2', t.Qwen2Config(**SIZES, num_key_value_heads=2, rms_norm_eps=1e-6)
  yield 'qwen3', t.Qwen3Config(**GROUPED, tie_word_embeddings=True)
  kinds = ['sliding_attention', 'full_attention'] * 2
  gemma = GROUPED | dict(sliding_window=5, query_pre_attn_scalar=9, layer_types=kinds)
  yield 'gemma2', t.Gemma2Config(
    **gemma, attn_logit_softcapping=2.0, final_logit_softcapping=3.0)
  yield 'gemma3', t.Gemma3TextConfig(**gemma)
  yield 'neox', t.GPTNeoXConfig(**SIZES | {'hidden_size': 32}, rotary_pct=0.5, rotary_emb_base=500)
  yield 'olmo2', t.Olmo2Config(**SIZES, num_key_value_heads=2)
  # As published: the layers that see all have YaRN's frequencies, those with a window have none.
  yield 'olmo3', t.Olmo3Config(**SIZES, num_key_value_heads=2, sliding_window=5, rope_theta=500.0,
                               rope_scaling=YARN)
  yield 'smollm3', t.SmolLM3Config(**GROUPED, no_rope_layer_interval=3, pad_token_id=0,
                                   bos_token_id=1, eos_token_id=2, rope_parameters=YARN | {
                                     'attention_factor': 1.3, 'rope_theta': 300.0})


def keep(read, module, args, kwargs, output):
  """Keeps a layer's input and output."""
  read['before'] = args[0] if args else kwargs['hidden_states']
  read['last'] = output[0] if isinstance(output, tuple) else output


def main() -> None:
  """Writes a folder for each kind."""
  torch.set_default_dtype(torch.float64)
  generator = torch.Generator().manual_seed(5)
  ids = torch.randint(0, 61, (2, 19), generator=generator)
  for seed, (name, config) in enumerate(configs()):
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    config._attn_implementation = 'eager'
    with KeepDouble(), torch.no_grad():
      model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float64, attn_implementation='eager').eval()
      for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        parameter.copy_(torch.tensor(parameter.numpy().astype(np.float32)))  # as stored
      output = model(ids, output_hidden_states=True)
      read = {}
      last_layer = (model.transformer.h if name == 'gpt2' else model.base_model.layers)[-1]
      handle = last_layer.register_forward_hook(functools.partial(keep, read), with_kwargs=True)
      model(ids)
      handle.remove()
    weights = {key: value.to(torch.float32).contiguous()
               for key, value in model.state_dict().items()
               if not (key == 'lm_head.weight' and config.tie_word_embeddings)}
    if name == 'neox':  # the published name; transformers 5 has another one in memory
      weights['embed_out.weight'] = weights.pop('lm_head.weight')
    save_file(weights, folder / 'model.safetensors', metadata={'format': 'pt'})
    content = json.loads(config.to_json_string(use_diff=False))
    content = {key: value for key, value in content.items() if value is not None}
    (folder / 'config.json').write_text(json.dumps(content, indent=1, sort_keys=True) + '\n')
    np.savez_compressed(
      folder / 'expected.npz', ids=ids.numpy().astype(np.int32), logits=output.logits.numpy(),
      **{key: value.numpy() for key, value in read.items()})
    print(name, sum(p.numel() for p in model.parameters()), float(output.logits.abs().max()))


if __name__ == '__main__':
  main()

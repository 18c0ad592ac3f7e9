"""The PyTorch side of `peers`: runs in an environment of its own and obeys lines on its input.

A line `NAME` runs that work once and answers with its seconds; `quit` ends. Needs torch and a
transformers release that still has a port of the authors' Transformer-XL (4.33).
"""

import argparse
import json
import sys
import time

import torch


def make_transformer_xl(options):
  """A train step, as the authors' trainer does it (clip, Adam), and evaluation steps."""
  from transformers import TransfoXLConfig, TransfoXLLMHeadModel
  config = TransfoXLConfig(
    vocab_size=options['vocab_size'], cutoffs=[], d_model=options['dim'], d_embed=options['dim'],
    n_head=options['heads'], d_head=options['dim'] // options['heads'], d_inner=4 * options['dim'],
    div_val=1, pre_lnorm=False, n_layer=options['layers'], mem_len=options['memory_len'],
    clamp_len=-1, same_length=False, proj_share_all_but_first=False, untie_r=False, dropout=0.0,
    dropatt=0.0, adaptive=True)
  torch.manual_seed(0)
  model = TransfoXLLMHeadModel(config)
  tokens = torch.randint(
    3, options['vocab_size'], (options['batch_size'], options['segment_len']))
  optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
  state = {'mems': None}

  def train():
    model.train()
    output = model(tokens, mems=state['mems'], labels=tokens)
    state['mems'] = [m.detach() for m in output.mems]
    optimizer.zero_grad(set_to_none=True)
    output.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()

  @torch.no_grad()
  def evaluate():
    model.eval()
    state['mems'] = model(tokens, mems=state['mems'], labels=tokens).mems

  return {'train': train, 'evaluate': evaluate}


def make_decoder(options):
  """Samples continuations with cached keys and values, as its users do."""
  from transformers import AutoConfig, AutoModelForCausalLM
  torch.manual_seed(0)
  sizes = options['config'] | {'bos_token_id': 1, 'eos_token_id': None}
  config = AutoConfig.for_model(sizes.pop('model_type'), **sizes)
  model = AutoModelForCausalLM.from_config(config).eval().to(getattr(torch, options['dtype']))
  prefixes = torch.tensor(options['prefixes']).repeat_interleave(options['samples'], 0)

  @torch.no_grad()
  def generate():
    out = model.generate(prefixes, do_sample=True, top_k=0, max_new_tokens=options['new_tokens'],
                         attention_mask=torch.ones_like(prefixes), pad_token_id=0)
    assert out.shape[1] == options['prefix_len'] + options['new_tokens']

  return {'generate': generate}


def make_bert(options):
  """Class scores of the texts in `folder`: sorted by length, padded to the longest of a batch."""
  import pathlib

  import numpy as np
  from transformers import BertForSequenceClassification
  folder = pathlib.Path(options['folder'])
  model = BertForSequenceClassification.from_pretrained(
    folder, torch_dtype=getattr(torch, options['dtype'])).eval()
  with np.load(folder / 'texts.npz', allow_pickle=False) as file:
    texts = [file[f'arr_{i}'] for i in range(len(file.files))]
  order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
  state = {}

  @torch.no_grad()
  def score(rows=None):
    rows = rows or state['rows']
    logits = np.zeros((len(texts), 2), np.float32)
    for start in range(0, len(order), rows):
      places = order[start:start + rows]
      longest = max(len(texts[i]) for i in places)
      ids, mask = torch.zeros(len(places), longest).long(), torch.zeros(len(places), longest)
      for row, i in enumerate(places):
        ids[row, :len(texts[i])] = torch.from_numpy(texts[i])
        mask[row, :len(texts[i])] = 1
      logits[places] = model(ids, attention_mask=mask).logits.float().numpy()
    np.save(folder / 'logits.npy', logits)

  def seconds(rows):
    begin = time.perf_counter()
    score(rows)
    return time.perf_counter() - begin

  score(32)
  state['rows'] = min((8, 32, 64), key=seconds)
  return {'score': score, 'versions': {'batch_rows': state['rows']}}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--kind', choices=('transformer_xl', 'decoder', 'bert'), required=True)
  parser.add_argument('--options', required=True, help='JSON')
  arguments = parser.parse_args()
  options = json.loads(arguments.options)
  work = {'transformer_xl': make_transformer_xl, 'decoder': make_decoder, 'bert': make_bert}[
    arguments.kind](options)
  import transformers
  print(json.dumps({'torch': torch.__version__, 'transformers': transformers.__version__,
                    'threads': torch.get_num_threads(), **work.pop('versions', {})}), flush=True)
  for line in sys.stdin:
    name = line.strip()
    if name == 'quit':
      return
    begin = time.perf_counter()
    work[name]()
    print(time.perf_counter() - begin, flush=True)


if __name__ == '__main__':
  main()

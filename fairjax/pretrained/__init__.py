"""Published models in JAX: BERT, ALBERT, decoders and sentence encoders, from their own files."""

from fairjax.pretrained.batch_runner import BatchRunner, bucket_lengths
from fairjax.pretrained.checkpoint import (
  Architecture,
  Pretrained,
  folder_name,
  load_pretrained,
  open_model,
  read_architecture,
)
from fairjax.pretrained.models import (
  class_logits,
  encode,
  mean_pool,
  mlm_logits,
  normalize,
)
from fairjax.pretrained.sentence_encoder import SentenceEncoder
from fairjax.pretrained.tokens import Encoded, encode_texts

__all__ = [
  'Architecture', 'BatchRunner', 'Encoded', 'Pretrained', 'SentenceEncoder', 'bucket_lengths',
  'class_logits', 'encode', 'encode_texts', 'folder_name', 'load_pretrained', 'mean_pool',
  'mlm_logits', 'normalize', 'open_model', 'read_architecture',
]

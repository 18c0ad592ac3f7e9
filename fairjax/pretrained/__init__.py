"""Published models in JAX: BERT, ALBERT, decoders and sentence encoders, from their own files."""

from fairjax.pretrained.batch_runner import BatchRunner, bucket_lengths
from fairjax.pretrained.checkpoint import (
  Pretrained,
  folder_name,
  load_pretrained,
  open_model,
  read_architecture,
)
from fairjax.pretrained.models import class_logits, encode, mean_pool, mlm_logits
from fairjax.pretrained.sentence_encoder import SentenceEncoder
from fairjax.pretrained.tokens import encode_texts

__all__ = [
  'BatchRunner', 'Pretrained', 'SentenceEncoder', 'bucket_lengths', 'class_logits', 'encode',
  'encode_texts', 'folder_name', 'load_pretrained', 'mean_pool', 'mlm_logits', 'open_model',
  'read_architecture',
]

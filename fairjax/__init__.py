"""fairjax: train Transformer-XL language models on TPUs, measure and reduce their bias."""

__version__ = '0.1.0'

"""Sentiment classifiers: BERT fine-tuned on labelled sentences, and how good scorers are (H-15)."""

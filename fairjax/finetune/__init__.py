"""Heads on a pretrained model: regression and classes, frozen or whole, over several seeds."""

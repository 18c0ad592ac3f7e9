"""Ratings of people: annotation sheets out, agreement and human fairness in."""

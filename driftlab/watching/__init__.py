"""A run watched from outside, checkpoint by checkpoint."""

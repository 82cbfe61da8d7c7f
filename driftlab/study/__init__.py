"""The embedded study: train every method and its controls over several seeds, measure everything, relate it."""

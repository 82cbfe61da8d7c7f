"""Random tabular policies over few tokens, their samples and their exact KL."""

import numpy as np

from driftlab.responses import tabular


def policy(rng, vocabulary=3, length=3, spread=1.0):
    """Return a random token kernel."""
    kernel = []
    for t in range(length):
        logits = spread * rng.standard_normal((vocabulary,) * (t + 1))
        weights = np.exp(logits)
        kernel.append(weights / weights.sum(-1, keepdims=True))
    return kernel


def draw(rng, kernel, count):
    """Sample responses: an array of ids of shape (count, length)."""
    table = tabular.joint(kernel)
    flat = rng.choice(table.size, size=count, p=table.ravel())
    return np.stack(np.unravel_index(flat, table.shape), axis=1)


def log_conditionals(kernel, ids):
    """Return log-probabilities of the next token after each prefix of each response: (count * length, V)."""
    rows = [np.log(kernel[t][tuple(ids[:, :t].T)]) for t in range(ids.shape[1])]
    first = np.broadcast_to(rows[0], (len(ids), rows[0].shape[-1]))
    return np.stack([first, *rows[1:]], axis=1).reshape(-1, first.shape[-1])

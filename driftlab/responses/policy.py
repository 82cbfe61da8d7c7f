r"""How far one policy moved from another on given responses: exact per token, estimated per sequence.

With P the new policy and P0 the base, ``kl_new_to_base`` is KL(P‖P0) and ``kl_base_to_new`` is KL(P0‖P), in nats.
A policy here is a distribution over responses of at most so many tokens at one temperature: what the sampler draws.

The sequence KL is an expectation over whole responses, so it depends on who sampled them. By the chain rule

.. math:: KL(P \| P_0) = E_{y \sim P} \sum_t KL(P(\cdot \mid y_{<t}) \| P_0(\cdot \mid y_{<t})),

and the inner term is computed exactly from the logits: its sum over the positions of a response drawn from **P** is the
Rao-Blackwellised estimate of KL(P‖P0), unbiased and never noisier than the log ratio. Summed over responses of anybody
else it estimates something else.

References
----------
Schulman, "Approximating KL divergence", 2020 (k1 and k3). Amini, Vieira and Cotterell, "Better estimation of the KL
divergence between language models", 2025, arXiv 2504.10637 (Rao-Blackwellisation). Lin, "Divergence measures based on
the Shannon entropy", 1991.
"""

import math
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from driftlab.errors import ShapeError, UsageError

Values = NDArray[np.float64]
CHUNK = 16384
"""Columns of the vocabulary that are in float64 at a time."""


@dataclass(frozen=True)
class TokenDrift:
    """Divergences at each of N response positions, float64, nats; whoever sampled the response.

    Attributes
    ----------
    kl_new_to_base, kl_base_to_new : array of shape (N,)
        Over the whole vocabulary; in [0, inf].
    js : array of shape (N,)
        Jensen-Shannon divergence with weight one half; in [0, log 2].
    entropy_new, entropy_base : array of shape (N,)
        In [0, log V].
    log_new, log_base : array of shape (N,)
        Log-probability of the token that stands there.
    """

    kl_new_to_base: Values
    kl_base_to_new: Values
    js: Values
    entropy_new: Values
    entropy_base: Values
    log_new: Values
    log_base: Values


def token_drift(
    new: Tensor, base: Tensor, tokens: Tensor, *, temperature: float = 1.0, chunk: int = CHUNK
) -> TokenDrift:
    r"""Compare two next-token distributions exactly, position by position.

    The vocabulary is passed twice in chunks, once for the normalisers and once for the sums, both in float64; the
    result does not depend on the chunk beyond rounding of float64. Equal logits give exactly 0.

    Parameters
    ----------
    new, base : Tensor of shape (N, V)
        Logits at the positions that predict ``tokens``.
    tokens : Tensor of shape (N,)
        The response tokens.
    temperature : float
        That of the sampler, above 0.
    chunk : int
        Vocabulary entries at a time; bounds the memory.

    Returns
    -------
    TokenDrift

    Raises
    ------
    ShapeError
        If the shapes do not fit: two models of different vocabularies cannot be compared.
    UsageError
        If the temperature is not above 0.

    Examples
    --------
    >>> p, q = torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([[0.5, 0.3, 0.2]]).log()
    >>> found = token_drift(p, q, torch.tensor([0]))
    >>> round(float(found.kl_new_to_base[0]), 6), round(float(found.js[0]), 6)
    (0.085123, 0.021901)
    """
    if new.shape != base.shape or new.ndim != 2 or tokens.shape != new.shape[:1]:
        raise ShapeError(
            f"Logits and tokens: expected (N, V) twice and (N,), found {tuple(new.shape)}, {tuple(base.shape)} and "
            f"{tuple(tokens.shape)}."
        )
    if not temperature > 0:
        raise UsageError(f"Temperature: expected a number above 0, found {temperature}.")
    if new.device.type == "mps":  # it has no float64
        new, base, tokens = new.cpu(), base.cpu(), tokens.cpu()
    norm_new, norm_base = (_log_normaliser(logits, temperature, chunk) for logits in (new, base))
    names = ("kl_new_to_base", "kl_base_to_new", "js", "entropy_new", "entropy_base")
    sums = {name: torch.zeros(len(new), dtype=torch.float64, device=new.device) for name in names}
    for start in range(0, new.shape[1], chunk):
        p = new[:, start : start + chunk].double() / temperature - norm_new
        q = base[:, start : start + chunk].double() / temperature - norm_base
        for name, value in _terms(p, q).items():
            sums[name] += value.sum(1)
    index = tokens[:, None]
    logs = {
        "log_new": new.gather(1, index).double() / temperature - norm_new,
        "log_base": base.gather(1, index).double() / temperature - norm_base,
    }
    return TokenDrift(**{name: value.reshape(-1).cpu().numpy() for name, value in (sums | logs).items()})


def join(parts: list[TokenDrift]) -> TokenDrift:
    """Put the positions of several calls one after the other."""
    return TokenDrift(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(TokenDrift)})


def sequence_estimates(sampler: Values, other: Values, exact: Values, lengths: NDArray[np.int64]) -> dict[str, Values]:
    r"""Estimate KL(sampler‖other) of whole responses, one value a response, three ways; each is unbiased.

    Parameters
    ----------
    sampler, other : array of shape (N,)
        Log-probabilities of the tokens under the policy **that sampled them** and under the other one.
    exact : array of shape (N,)
        Exact per-token KL(sampler‖other) at the same positions.
    lengths : array of shape (R,)
        Tokens of each response, all at least 1; they sum to N.

    Returns
    -------
    dict of array of shape (R,)
        ``rb``, the sum of the exact per-token KL, never negative; ``k1``, the sum of log(sampler/other), any sign;
        ``k3``, the sum of r − 1 − log r with r = other/sampler, never negative.

    Raises
    ------
    ShapeError
        If the lengths do not fit.
    """
    if not len(sampler) == len(other) == len(exact) == lengths.sum() or (lengths < 1).any():
        raise ShapeError(
            f"Responses: expected lengths of at least 1 that sum to {len(exact)} tokens, found {lengths.sum()}."
        )
    ratio = other - sampler
    starts = np.concatenate([[0], lengths.cumsum()[:-1]])
    tokens = {"rb": exact, "k1": -ratio, "k3": np.expm1(ratio) - ratio}
    return {name: np.add.reduceat(values, starts) for name, values in tokens.items()}


def _log_normaliser(logits: Tensor, temperature: float, chunk: int) -> Tensor:
    parts = [part.double().div(temperature).logsumexp(1) for part in torch.split(logits, chunk, dim=1)]
    return torch.stack(parts).logsumexp(0)[:, None]


def _terms(p: Tensor, q: Tensor) -> dict[str, Tensor]:
    """Return the summands of one chunk from log-probabilities; what has probability 0 adds 0."""
    prob_p, prob_q = p.exp(), q.exp()
    gap = p - q
    half = math.log(2.0)
    terms = {
        "kl_new_to_base": prob_p * gap,
        "kl_base_to_new": -prob_q * gap,
        # log(p / m) = log 2 - log(1 + q/p): no cancellation where p is near q
        "js": 0.5
        * (
            torch.where(prob_p > 0, prob_p * (half - _softplus(-gap)), 0.0)
            + torch.where(prob_q > 0, prob_q * (half - _softplus(gap)), 0.0)
        ),
        "entropy_new": -prob_p * p,
        "entropy_base": -prob_q * q,
    }
    from_new, from_base = prob_p > 0, prob_q > 0
    weights = {"kl_new_to_base": from_new, "entropy_new": from_new, "kl_base_to_new": from_base}
    weights["entropy_base"] = from_base
    return {name: torch.where(weights[name], v, 0.0) if name in weights else v for name, v in terms.items()}


def _softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))

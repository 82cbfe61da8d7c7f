r"""Success has a price, and imitation pays more: the Razor on a policy small enough to list all its responses.

A random base policy writes three tokens out of four; a third of its 64 responses are right. For a success level s the
closest policy to the base is Q†, at KL = kl(s‖p0). Self-distillation imitates the base that is shown a right answer.
Modelled here: the shown base copies the demonstration with probability ``trust`` at each token as long as it has
followed it, and else writes as ever; demonstrations are right responses, as often as the base gives them. What a
student that sees no demonstration can best do is the mean over demonstrations at every token. That target reaches a
success s of its own, by another route than Q†, and ends further away than s required:

    KL(target‖base) = kl(s‖p0) + KL(target‖Q†)

    python examples/razor.py
"""

import argparse
import itertools

import numpy as np

from driftlab.responses.tabular import Table, conditionals, joint, kl, minimal_policy, razor, token_kernel

VOCABULARY, LENGTH = 4, 3


def world(seed: int) -> tuple[list[Table], np.ndarray]:
    """Return a random base policy as a token kernel, and which responses are right."""
    rng = np.random.default_rng(seed)
    kernel = [rng.dirichlet(np.ones(VOCABULARY), size=(VOCABULARY,) * t) for t in range(LENGTH)]
    right = np.zeros(VOCABULARY**LENGTH, dtype=bool)
    right[rng.permutation(right.size)[: right.size // 3]] = True
    return kernel, right.reshape((VOCABULARY,) * LENGTH)


def shown(base: list[Table], demonstration: tuple[int, ...], trust: float) -> list[Table]:
    """Return the base that is shown a demonstration and copies it with probability ``trust``."""
    kernel = []
    for t, conditional in enumerate(base):
        moved = conditional.copy()
        prefix = demonstration[:t]
        moved[prefix] *= 1 - trust
        moved[(*prefix, demonstration[t])] += trust
        kernel.append(moved)
    return kernel


def target(base: list[Table], right: np.ndarray, trust: float) -> Table:
    """Return what a student without a demonstration is pulled to: the teacher's mean at every token."""
    table = joint(base)
    weights = np.where(right, table, 0.0)
    weights /= weights.sum()
    steps = [np.zeros_like(step) for step in base]
    for demonstration in itertools.product(range(VOCABULARY), repeat=LENGTH):
        if right[demonstration]:
            for step, moved in zip(steps, shown(base, demonstration, trust), strict=True):
                step += weights[demonstration] * moved
    return joint(steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    base, right = world(parser.parse_args().seed)
    table = joint(base)
    print(f"base success {table[right].sum():.4f}\n")
    print("trust  success  KL target  kl(s‖p0)  excess  KL of Q†")
    for trust in (0.1, 0.3, 0.5, 0.7, 0.9):
        policy = target(base, right, trust)
        found = razor(policy, table, right)
        best = joint(token_kernel(base, right, found.success))
        assert np.allclose(best, minimal_policy(table, right, found.success), atol=1e-14)
        assert abs(found.drift - found.required - found.excess) < 1e-12
        print(
            f"{trust:5.1f}  {found.success:7.4f}  {found.drift:9.5f}  {found.required:8.5f}  {found.excess:6.4f}  "
            f"{kl(best, table):8.5f}"
        )
    gap = max(
        float(np.abs(ours - theirs).max())
        for ours, theirs in zip(conditionals(policy), conditionals(best), strict=True)
    )
    print(f"\nLargest difference between the target's and Q†'s token probabilities at trust {trust}: {gap:.3f}")


if __name__ == "__main__":
    main()

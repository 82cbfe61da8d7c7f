"""Two models on the same prompts: responses, and how far they are from each other.

``generate``, ``respond``
    Checkpoints and a file of prompts to responses.
``readers``, ``forms``, ``sources``
    Responses of any common form to one normal form, and which of them belong together.
``pairing``, ``embedding``, ``cosines``
    Two sets of responses to pairs, texts to unit vectors, vectors to cosines and their baselines.
``similarity``, ``summaries``, ``comparisons``, ``remarks``
    All pairs of all runs to tables: one row a prompt, distributions with intervals, tests between runs.
"""

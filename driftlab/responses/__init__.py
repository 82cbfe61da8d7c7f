"""Two models on the same prompts: responses, and how far they are from each other.

``generate``, ``respond``
    Checkpoints and a file of prompts to responses.
``readers``, ``forms``, ``sources``
    Responses of any common form to one normal form, and which of them belong together.
``pairing``, ``similarity``, ``summaries``, ``remarks``
    Pairs of responses to cosines, baselines, intervals and tests.
"""

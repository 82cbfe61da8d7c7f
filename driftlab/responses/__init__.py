"""What models say: how alike two models' responses are, how far the policy moved, and what became of its answers.

Similarity of responses:

``generate``, ``respond``
    Checkpoints and a file of prompts to responses.
``readers``, ``forms``, ``sources``
    Responses of any common form to one normal form, and which of them belong together.
``pairing``, ``embedding``, ``cosines``
    Two sets of responses to pairs, texts to unit vectors, vectors to cosines and their baselines.
``similarity``, ``summaries``, ``comparisons``, ``remarks``
    All pairs of all runs to tables: one row a prompt, distributions with intervals, tests between runs.

Drift of the policy:

``policy``, ``estimates``
    Logits to exact divergences a token and estimates a response; means over prompts with their errors.
``razor``, ``tabular``
    Drift beyond what success required, from samples and exactly.
``artifacts``, ``ngrams``, ``verdict``
    Texts to artefact rates, amplified phrases and the verdict whether a checkpoint collapsed.
``trails``, ``answers``, ``scoring``, ``policy_tables``, ``policy_walks``, ``policy_study``
    Runs and their checkpoints to responses, to drift at every token, to rows, to tables.
"""

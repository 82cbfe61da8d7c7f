"""How far a language model moved during post-training, and what it forgot.

The rooms of the library, each importable by itself:

``driftlab.checkpoints``
    Files to an ordered sequence of named matrices, read lazily.
``driftlab.spectral``
    Two matrices to drift numbers.
``driftlab.scan``
    The loop over a sequence that fills a results folder.
``driftlab.results``
    The results folder itself.

Importing ``driftlab`` imports none of them, so that it costs nothing.
"""

__version__ = "0.1.0"

"""Distance between domains: data sets to texts to embeddings to MMD.

``texts``, from ``specs``, ``readers``, ``datafiles``, ``columns``
    Files of any common form to a list of texts, with a count of everything that was left out.
``encoder``, ``sentences``, ``encoded``, ``cache``
    Texts to unit vectors.
``mmd``, from ``kernel_sums``, ``swaps``, ``estimates``; ``bandwidth``, ``comparisons``
    Unit vectors to distances with intervals, p-values and noise floors: one bandwidth, one pass.
``projection``, ``reference``
    The maps, and a heat map from elsewhere.
``study``, with ``settings`` and ``remarks``
    All of it in order, from prepared domains to tables.
"""

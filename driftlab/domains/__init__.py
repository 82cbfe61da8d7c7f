"""Distance between domains: data sets to texts to embeddings to MMD.

``texts``, ``readers``, ``columns``
    Files of any common form to a list of texts, with a count of everything that was left out.
``encoder``, ``cache``
    Texts to unit vectors.
``bandwidth``, ``kernel_sums``, ``swaps``, ``mmd``, ``comparisons``
    Unit vectors to distances with intervals, p-values and noise floors: one bandwidth, one pass.
``projection``
    The maps: t-SNE of the texts, MDS of the domains.
``study``
    All of it in order, from prepared domains to tables.
"""

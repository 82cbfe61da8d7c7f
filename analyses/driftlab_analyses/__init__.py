"""The figures and tables of driftlab, one module each; they read stored results and nothing else.

A module offers ``table(results) -> DataFrame`` and ``figure(table) -> Figure``; :data:`FIGURES` lists the modules.
"""

FIGURES: dict[str, tuple[str, ...]] = {
    "parameter_drift": ("spectral_summary",),
    "layer_map": ("spectral",),
    "float32_view": ("float32",),
    "domain_distance": ("mmd",),
    "domain_distance_reference": ("mmd_reference",),
    "domain_map": ("projection",),
}
"""Figure name to the stored tables it needs; the module of the same name draws it."""

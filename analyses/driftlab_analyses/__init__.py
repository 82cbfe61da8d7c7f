"""The figures and tables of driftlab, one module each; they read stored results and nothing else.

A module offers ``table(results) -> DataFrame`` and ``figure(table) -> Figure``; :data:`FIGURES` lists the modules. One
that has another form for its numbers offers ``write_beside(table, stem)`` too.
"""

FIGURES: dict[str, tuple[str, ...]] = {
    "parameter_drift": ("spectral_summary",),
    "layer_map": ("spectral",),
    "float32_view": ("float32",),
    "domain_distance": ("mmd",),
    "domain_distance_reference": ("mmd_reference",),
    "domain_map": ("projection",),
    "forgetting_curve": ("curve",),
    "continual": ("forgetting",),
    "teacher_freshness": ("scores", "forgetting", "steps"),
    "stable_teacher": ("steps",),
    "supervision_density": ("scores", "forgetting", "steps"),
    "tables": ("forgetting_summary",),
    "response_drift": ("similarity",),
    "collapse": ("steps", "artifacts"),
    "razor_plane": ("policy",),
    "kl_forgetting": ("policy", "forgetting"),
}
"""Figure name to the stored tables it needs; the module of the same name draws it."""

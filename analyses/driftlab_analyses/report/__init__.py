"""One self-contained page of a results folder: what was run, findings in words, tables, figures, provenance."""

"""What measuring a run in progress needs, from outside or inside its trainer: growing tables, walks, limits."""

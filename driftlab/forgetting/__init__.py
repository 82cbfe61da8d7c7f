"""What a run gained and what it forgot: score tables to changes, continual-learning metrics and the distance curve."""

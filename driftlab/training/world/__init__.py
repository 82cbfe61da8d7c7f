"""The built-in tiny world: a 155k-parameter Llama and ten procedural domains, so that a run takes minutes on a CPU."""

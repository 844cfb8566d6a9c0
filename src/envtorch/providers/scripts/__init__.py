"""Scripts that run by themselves, in a process of their own, with nothing of EnvTorch imported."""

"""How fast EnvTorch is, beside OpenEnv 0.10.0 and beside a bare socket, in one run. Run: make bench"""

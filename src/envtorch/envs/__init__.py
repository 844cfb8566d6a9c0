"""Environments that come with EnvTorch."""

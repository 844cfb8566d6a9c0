"""Targets: what a command line names, and the application that is served for it."""

from envtorch.targets.target import Target, find_target, function_named, load_app

__all__ = ["Target", "find_target", "function_named", "load_app"]

"""A server of several processes: `serve_workers("my_module:app", workers=4)`."""

from envtorch.server.workers.worker_launch import serve_workers

__all__ = ["serve_workers"]

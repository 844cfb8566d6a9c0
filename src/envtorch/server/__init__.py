"""Serve an environment: `create_app(MyEnvironment)` gives a FastAPI application."""

from envtorch.server.app import HTTPEnvServer, create_app, create_fastapi_app
from envtorch.server.options import ServerOptions
from envtorch.server.serve import serve

__all__ = ["HTTPEnvServer", "ServerOptions", "create_app", "create_fastapi_app", "serve"]

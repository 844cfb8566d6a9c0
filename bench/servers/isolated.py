"""The echo, where processes of their own can load it by name."""

import envtorch
from bench.servers.environment import echo

Echo, Say, Said = echo(envtorch, "thread", module=__name__)

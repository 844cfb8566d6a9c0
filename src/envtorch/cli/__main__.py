"""`python -m envtorch.cli`: the same as the `envtorch` command."""

from envtorch.cli import main

main()

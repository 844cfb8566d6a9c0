"""`envtorch play`: an environment in the terminal."""

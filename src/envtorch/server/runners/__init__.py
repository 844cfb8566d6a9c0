"""Where an environment runs: on the event loop, on a thread, or in a process of its own."""

"""Live sessions: what each one is, how many there are, and what was answered in them."""

"""Who may use a server: tokens, keys and the login page."""

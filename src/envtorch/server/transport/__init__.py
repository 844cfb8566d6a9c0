"""How a WebSocket's frames reach a conversation: through ASGI, or straight from picows."""

"""The ways into a server: WebSocket, HTTP, MCP and task routes."""

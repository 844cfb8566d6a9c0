"""A harness of sorts: answers each line, in JSON events, and uses its tools when told to.

python harness_program.py TOOLS_URL
"""

import json
import sys
import time

import httpx


def say(type: str, **data: object) -> None:
    print(json.dumps({"type": type, "data": data}), flush=True)


def call_tool(url: str, name: str, arguments: dict[str, object]) -> object:
    """One tool call over streamable HTTP, by hand."""
    headers = {"Accept": "application/json, text/event-stream"}

    def ask(method: str, id: int | None = 1, **params: object) -> httpx.Response:
        body = {"jsonrpc": "2.0", "method": method, "params": params} | ({} if id is None else {"id": id})
        return httpx.post(url, json=body, headers=headers, timeout=30)

    client = {"name": "harness", "version": "1"}
    begun = ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
    if session := begun.headers.get("mcp-session-id"):
        headers["mcp-session-id"] = session
    ask("notifications/initialized", None)
    answer = ask("tools/call", name=name, arguments=arguments).text
    line = next((line for line in answer.splitlines() if line.startswith("data:")), answer)
    result: object = json.loads(line.removeprefix("data:"))["result"]["structuredContent"]
    return result


def main(url: str) -> None:
    print("ready", flush=True)
    turns = 0
    for line in sys.stdin:
        turns += 1
        word, _, rest = line.strip().partition(" ")
        if word == "die":
            sys.exit("it was told to")
        if word == "hang":
            time.sleep(3600)
        if word == "mumble":
            say("text_output", text="hm")
            print("", flush=True)
            continue
        if word == "use":
            name, _, thing = rest.partition(" ")
            say("tool_call", tool_name=name, arguments={"thing": thing})
            say("tool_result", tool_name=name, result=call_tool(url, name, {"thing": thing}))
        say("turn_complete", response=f"{turns}: {line.strip()}", done=word == "bye")


if __name__ == "__main__":
    main(sys.argv[1])

"""`POST /step` over one kept connection, with the standard library alone: the same for every server."""

import http.client
import json

from bench.clients.timing import asked, repeat, tell

BODY = json.dumps({"action": {"message": "hello"}})


def main() -> None:
    job = asked()
    connection = http.client.HTTPConnection("127.0.0.1", job["port"])
    headers = {"Content-Type": "application/json"}

    def post(path: str, body: str) -> http.client.HTTPResponse:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        found = json.loads(response.read())
        if response.status != 200 or "observation" not in found:
            raise RuntimeError(f"{path} was answered {response.status} {found}")
        return response

    session = post("/reset", "{}").getheader("EnvTorch-Session")
    if session is not None:
        headers["EnvTorch-Session"] = session
    tell(repeat(lambda: post("/step", BODY), job["seconds"]))


if __name__ == "__main__":
    main()

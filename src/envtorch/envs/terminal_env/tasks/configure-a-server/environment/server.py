# Reads server.ini: section [server] with host and port; section [routes] with a path and the text it answers with.
import configparser
import http.server

settings = configparser.ConfigParser()
settings.read("/app/server.ini")


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = settings["routes"].get(self.path)
        self.send_response(404 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())


address = settings["server"]["host"], int(settings["server"]["port"])
http.server.HTTPServer(address, Handler).serve_forever()

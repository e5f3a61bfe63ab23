# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server whose answers a test defines beforehand."""
import http.server
import threading


class Endpoint:
    """Answers each request with the next of the given answers (status, headers), the last of them
    forever; records the requests. hangs(body): true as long as such a request gets no answer."""

    def __init__(self, *answers, port=0, hangs=lambda body: False):
        self.answers, self.requests, self.hangs = list(answers) or [(204, {})], [], hangs
        self.closing = threading.Event()
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                endpoint.requests.append((self.path, dict(self.headers), body))
                while endpoint.hangs(body) and not endpoint.closing.wait(0.02):
                    pass
                status, headers = endpoint.answers.pop(0) if len(endpoint.answers) > 1 else endpoint.answers[0]
                if endpoint.closing.is_set():
                    return
                self.send_response(status)
                for name, value in {"Content-Length": "0", **headers}.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/events"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def asked_for(self, word):
        return sum(word.encode() in body for _, _, body in list(self.requests))

    def __exit__(self, *_):
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()

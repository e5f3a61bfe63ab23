# SPDX-License-Identifier: Apache-2.0
"""A running admin server, and the requests that tests send to it."""
import json
import socket
import urllib.error
import urllib.request


class Server:
    def __init__(self, semel, *words, context=None, env=None, **options):
        self.semel, self.context = semel, context
        self.child = semel.spawn("serve", "--listen", "127.0.0.1:0", *words, env=env, **options)
        line = self.child.stdout.readline()
        assert line.startswith("listening on "), line + self.child.stderr.read()
        self.url = line.split()[2]
        self.port = int(self.url.rsplit(":", 1)[1])

    def ask(self, path, method="GET", headers=None, body=None):
        """(status, headers, text)"""
        request = urllib.request.Request(self.url + path, method=method, headers=headers or {}, data=body)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.context) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.headers, refusal.read().decode()

    def json(self, path, method="GET", status=200, **options):
        code, _, text = self.ask(path, method, **options)
        assert code == status, text
        return json.loads(text)

    def problem(self, status, path, method="GET", **options):
        code, headers, text = self.ask(path, method, **options)
        assert (code, headers["Content-Type"]) == (status, "application/problem+json"), text
        problem = json.loads(text)
        assert problem["status"] == status and problem["title"] and problem["detail"]
        return problem["type"].removeprefix("/problems/")

    def raw(self, data, timeout=60, finished=False):
        """The response to these bytes, until the server closes or the time-out. finished: shuts down the sending side."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            answer = b""
            try:
                connection.sendall(data)
                if finished:
                    connection.shutdown(socket.SHUT_WR)
                while part := connection.recv(65536):
                    answer += part
            except OSError:  # the time-out, or closed, perhaps before all was sent
                pass
            return answer

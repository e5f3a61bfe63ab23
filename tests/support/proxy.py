# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that misbehaves on request: it cuts connections in mid-stream, delays, drops
answers, or refuses. A cut can be bound to bytes in the stream, or to a statement that
the client has prepared at PostgreSQL."""
import re
import select
import socket
import threading
import time

from sandbox import free_port

PREPARE = re.compile(rb"P.{4}(semel_[0-9a-f]+_\d+)\0([^\0]+)\0", re.DOTALL)


class Link:
    """One connection: the client's end and the server's."""

    def __init__(self, client, server):
        self.client, self.server = client, server
        self.prepared = {}  # PostgreSQL's statements by name, as the client had them prepared

    def record_prepared(self, data):
        self.prepared.update(PREPARE.findall(data))

    def mentions(self, text, data):
        """These bytes, or the name of a prepared statement that has them."""
        return text in data or any(text in statement and b"\0" + name + b"\0" in data for name, statement in self.prepared.items())

    def other(self, end):
        return self.server if end is self.client else self.client

    def cut(self):
        """As after a reboot of the machine: the next packet is answered by a reset."""
        for end in (self.client, self.server):
            try:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                end.close()
            except OSError:
                pass


class Proxy:
    """Threads: one for all links. Settings may be changed at any time from outside."""

    def __init__(self, target, host="127.0.0.1"):
        self.target, self.host, self.port = target, host, free_port()
        self.delay_s = 0.0
        self.refusing = False  # new connections are cut at once
        self.dropping_answers = False  # what the server sends does not arrive
        self.cut_when = None  # (bytes to find, from the client?, how many links still)
        self.cuts = 0
        self.links, self.lock, self.closed = [], threading.Lock(), False
        self.listener = socket.create_server((self.host, self.port))
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def cut_all(self):
        """All connections that are open now, wherever they are in their streams."""
        with self.lock:
            links, self.links = self.links, []
        for link in links:
            link.cut()
        self.cuts += len(links)
        return len(links)

    def cut_at(self, text, from_client=True, times=1):
        """Cuts in the middle of the chunk that has these bytes: half of it still arrives."""
        self.cut_when = [text, from_client, times]

    def half_close(self):
        """Nothing more comes from the servers; the clients may still send."""
        with self.lock:
            for link in self.links:
                try:
                    link.client.shutdown(socket.SHUT_WR)
                except OSError:
                    pass

    # ---- the thread ----------------------------------------------------------------------------

    def serve(self):
        while not self.closed:
            with self.lock:
                ends = {end: link for link in self.links for end in (link.client, link.server)}
            try:
                ready, _, _ = select.select([self.listener, *ends], [], [], 0.05)
            except (OSError, ValueError):
                continue  # one was cut from outside
            for end in ready:
                if end is self.listener:
                    self.accept()
                else:
                    self.forward(ends[end], end)

    def accept(self):
        client, _ = self.listener.accept()
        try:
            if self.refusing:
                raise ConnectionRefusedError
            link = Link(client, socket.create_connection(self.target, 5))
        except OSError:
            client.close()
            return
        with self.lock:
            self.links.append(link)

    def forward(self, link, end):
        try:
            data = end.recv(65536)
            if end is link.client:
                link.record_prepared(data)
            if self.delay_s:
                time.sleep(self.delay_s)
            if data and self.must_cut(link, end, data):
                link.other(end).sendall(data[: len(data) // 2])
                data = b""
                self.cuts += 1
            elif data and not (self.dropping_answers and end is link.server):
                link.other(end).sendall(data)
        except OSError:
            data = b""
        if not data:
            self.remove(link)

    def must_cut(self, link, end, data):
        if not self.cut_when:
            return False
        text, from_client, times = self.cut_when
        if (end is link.client) != from_client or not link.mentions(text, data):
            return False
        self.cut_when = [text, from_client, times - 1] if times > 1 else None
        return True

    def remove(self, link):
        with self.lock:
            if link in self.links:
                self.links.remove(link)
        link.cut()

    def close(self):
        self.closed = True
        self.thread.join(5)
        self.cut_all()
        self.listener.close()

# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that misbehaves on request: it cuts connections in mid-stream, delays, swallows what
comes back, or refuses. What it does can be bound to bytes it sees pass by, or to a statement that
PostgreSQL was told to prepare before."""
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

    def listen(self, data):
        self.prepared.update(PREPARE.findall(data))

    def speaks_of(self, text, data):
        """These bytes, or the name of a prepared statement that has them."""
        return text in data or any(text in statement and b"\0" + name + b"\0" in data for name, statement in self.prepared.items())

    def other(self, end):
        return self.server if end is self.client else self.client

    def cut(self):
        """As a machine that vanished and came back: the next word is answered by a reset."""
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
        self.swallowing = False  # what the server says does not arrive
        self.cut_when = None  # (bytes that are looked for, from the client?, how many links still)
        self.cuts = 0
        self.links, self.lock, self.closed = [], threading.Lock(), False
        self.door = socket.create_server((self.host, self.port))
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def cut_all(self):
        """Every connection of now, wherever it is in its stream."""
        with self.lock:
            links, self.links = self.links, []
        for link in links:
            link.cut()
        self.cuts += len(links)
        return len(links)

    def cut_at(self, text, from_client=True, times=1):
        """Cuts in the middle of the piece in which these bytes pass by: half of it still arrives."""
        self.cut_when = [text, from_client, times]

    def half_close(self):
        """Nothing more comes from the servers; the clients may still talk."""
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
                ready, _, _ = select.select([self.door, *ends], [], [], 0.05)
            except (OSError, ValueError):
                continue  # one was cut from outside
            for end in ready:
                if end is self.door:
                    self.welcome()
                else:
                    self.carry(ends[end], end)

    def welcome(self):
        client, _ = self.door.accept()
        try:
            if self.refusing:
                raise ConnectionRefusedError
            link = Link(client, socket.create_connection(self.target, 5))
        except OSError:
            client.close()
            return
        with self.lock:
            self.links.append(link)

    def carry(self, link, end):
        try:
            data = end.recv(65536)
            if end is link.client:
                link.listen(data)
            if self.delay_s:
                time.sleep(self.delay_s)
            if data and self.must_cut(link, end, data):
                link.other(end).sendall(data[: len(data) // 2])
                data = b""
                self.cuts += 1
            elif data and not (self.swallowing and end is link.server):
                link.other(end).sendall(data)
        except OSError:
            data = b""
        if not data:
            self.forget(link)

    def must_cut(self, link, end, data):
        if not self.cut_when:
            return False
        text, from_client, times = self.cut_when
        if (end is link.client) != from_client or not link.speaks_of(text, data):
            return False
        self.cut_when = [text, from_client, times - 1] if times > 1 else None
        return True

    def forget(self, link):
        with self.lock:
            if link in self.links:
                self.links.remove(link)
        link.cut()

    def close(self):
        self.closed = True
        self.thread.join(5)
        self.cut_all()
        self.door.close()

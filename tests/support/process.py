# SPDX-License-Identifier: Apache-2.0
"""What the tests can do to every server that they start."""
import signal

from sandbox import START_S, suspend


class Process:
    """self.child is its process; None: it was not started yet."""

    child = None

    def is_alive(self):
        return self.child is not None and self.child.poll() is None

    def stop(self):
        if self.is_alive():
            self.child.terminate()
            self.child.wait(START_S)

    def kill(self):
        """kill -9: nothing is flushed, no shutdown runs."""
        self.child.kill()
        self.child.wait()

    def pause(self):
        suspend(self.child.pid)

    def resume(self):
        self.child.send_signal(signal.SIGCONT)

    def close(self):
        if self.is_alive():
            self.kill()

# SPDX-License-Identifier: Apache-2.0
"""What every server that the tests start can have done to it."""
import signal

from sandbox import START_S


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
        """kill -9: nothing is flushed, nobody is told."""
        self.child.kill()
        self.child.wait()

    def pause(self):
        self.child.send_signal(signal.SIGSTOP)

    def resume(self):
        self.child.send_signal(signal.SIGCONT)

    def close(self):
        if self.is_alive():
            self.kill()

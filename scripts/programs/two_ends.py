"""What the two ends of a transfer say to each other over TCP, and the bytes that they move."""

import ctypes
import json
import random
import socket
import sys

SIZE = 8 << 20


def connect(side, port):
    """A file of lines of JSON to the other end: of the server, or of the client that comes to it."""
    if side == "server":
        with socket.create_server(("127.0.0.1", port)) as listener:
            return listener.accept()[0].makefile("rw")
    return socket.create_connection(("127.0.0.1", port)).makefile("rw")


def tell(peer, what):
    peer.write(json.dumps(what) + "\n")
    peer.flush()


def hear(peer):
    line = peer.readline()
    if not line:
        sys.exit("the other end is gone")
    return json.loads(line)


def bytes_of(seed):
    """Bytes of which none tells the next one."""
    return random.Random(seed).randbytes(SIZE)


class Memory:
    """Memory that a library registers."""

    def __init__(self):
        self.bytes = ctypes.create_string_buffer(SIZE)
        self.address = ctypes.addressof(self.bytes)

    def fill(self, seed):
        self.bytes.raw = bytes_of(seed)

    def check(self, seed, what):
        wrong = sum(a != b for a, b in zip(self.bytes.raw, bytes_of(seed)))
        if wrong:
            sys.exit(f"{what}: {wrong} of {SIZE} bytes are wrong")
        print(f"{what}: {SIZE} bytes, 0 wrong", flush=True)

"""What the two ends of a transfer say to each other over TCP, and the bytes that they move."""

import ctypes
import json
import random
import socket
import sys

SIZE = 8 << 20


def connect(side, server):
    """A file of lines of JSON to the other end: of the server, or of the client that comes to it."""
    if side == "server":
        with socket.create_server(server) as listener:
            return listener.accept()[0].makefile("rw")
    return socket.create_connection(server).makefile("rw")


def own_address(server):
    """The address that this end has for the server."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        any_socket.connect(server)
        return any_socket.getsockname()[0]


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


def exchange(side, server, name, memory, attach):
    """The client writes to the first memory of the server's, and reads from the second: each byte is compared. `name` is what a library
    needs to know of the server; with that `attach` gives the client its functions to write and to read: from or to an address here, at
    an address there."""
    peer = connect(side, server)
    if side == "server":
        memory[1].fill(2)
        tell(peer, [name, [block.address for block in memory]])
        hear(peer)
        memory[0].check(1, "written")
        tell(peer, "checked")
        hear(peer)
        return
    name, remote = hear(peer)
    write, read = attach(name)
    memory[0].fill(1)
    write(memory[0].address, remote[0])
    tell(peer, "written")
    hear(peer)
    read(memory[1].address, remote[1])
    memory[1].check(2, "read")
    tell(peer, "done")

#!/usr/bin/env python3
"""mooncake_transfer.py server|client PORT: the client writes to the server's memory and reads from it, by Mooncake's transfer engine over
RDMA. Each byte is compared."""

import os
import sys

from mooncake.engine import TransferEngine

from two_ends import SIZE, Memory, exchange

side, port = sys.argv[1], int(sys.argv[2])
engine = TransferEngine()
# The engine's ends find each other over TCP, without a service for that.
if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "roce0"):
    sys.exit("the engine does not start")
memory = [Memory(), Memory()]
for block in memory:
    if engine.register_memory(block.address, SIZE):
        sys.exit("memory is not registered")


def expect(result, what):
    if result:
        sys.exit(f"{what}: {result}")


def attach(target):
    def write(local, remote):
        expect(engine.transfer_sync_write(target, local, remote, SIZE), "write")

    def read(local, remote):
        expect(engine.transfer_sync_read(target, local, remote, SIZE), "read")

    return write, read


exchange(side, port, f"127.0.0.1:{engine.get_rpc_port()}", memory, attach)
# The engine's threads do not end by themselves.
sys.stdout.flush()
os._exit(0)

#!/usr/bin/env python3
"""mooncake_transfer.py server|client HOST PORT: the client writes to the server's memory and reads from it, by Mooncake's transfer engine
over RDMA. Each byte is compared."""

import os
import sys

from mooncake.engine import TransferEngine

from two_ends import SIZE, Memory, exchange, own_address

side, server = sys.argv[1], (sys.argv[2], int(sys.argv[3]))
here = own_address(server)
engine = TransferEngine()
# The engine's ends find each other over TCP, without a service for that.
if engine.initialize(here, "P2PHANDSHAKE", "rdma", "roce0"):
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


exchange(side, server, f"{here}:{engine.get_rpc_port()}", memory, attach)
# The engine's threads do not end by themselves.
sys.stdout.flush()
os._exit(0)

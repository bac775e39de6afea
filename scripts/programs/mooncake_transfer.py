#!/usr/bin/env python3
"""mooncake_transfer.py server|client PORT: the client writes to the server's memory and reads from it, by Mooncake's transfer engine over
RDMA. Each byte is compared."""

import os
import sys

from mooncake.engine import TransferEngine

from two_ends import SIZE, Memory, connect, hear, tell

side, port = sys.argv[1], int(sys.argv[2])
engine = TransferEngine()
# The engine's ends find each other over TCP, without a service for that.
if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "roce0"):
    sys.exit("the engine does not start")
memory = [Memory(), Memory()]
for block in memory:
    if engine.register_memory(block.address, SIZE):
        sys.exit("memory is not registered")
peer = connect(side, port)


def expect(result, what):
    if result:
        sys.exit(f"{what}: {result}")


if side == "server":
    memory[1].fill(2)
    tell(peer, [f"127.0.0.1:{engine.get_rpc_port()}", [block.address for block in memory]])
    hear(peer)
    memory[0].check(1, "written")
    tell(peer, "checked")
    hear(peer)
else:
    target, remote = hear(peer)
    memory[0].fill(1)
    expect(engine.transfer_sync_write(target, memory[0].address, remote[0], SIZE), "write")
    tell(peer, "written")
    hear(peer)
    expect(engine.transfer_sync_read(target, memory[1].address, remote[1], SIZE), "read")
    memory[1].check(2, "read")
    tell(peer, "done")
# The engine's threads do not end by themselves.
sys.stdout.flush()
os._exit(0)

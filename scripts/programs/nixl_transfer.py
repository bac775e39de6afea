#!/usr/bin/env python3
"""nixl_transfer.py server|client PORT: the client writes to the server's memory and reads from it, by NIXL over UCX. Each byte is
compared. UCX_TLS says by which transport."""

import sys
import time

from nixl._api import nixl_agent, nixl_agent_config

from two_ends import SIZE, Memory, connect, hear, tell

side, port = sys.argv[1], int(sys.argv[2])
agent = nixl_agent(side, nixl_agent_config(backends=["UCX"]))
memory = [Memory(), Memory()]
regions = [(block.address, SIZE, 0, "") for block in memory]
agent.register_memory(regions, "DRAM")
peer = connect(side, port)


def transfer(operation, local, remote):
    mine = agent.get_xfer_descs([(local, SIZE, 0)], "DRAM")
    theirs = agent.get_xfer_descs([(remote, SIZE, 0)], "DRAM")
    handle = agent.initialize_xfer(operation, mine, theirs, "server")
    state = agent.transfer(handle)
    while state == "PROC":
        time.sleep(0.001)
        state = agent.check_xfer_state(handle)
    if state != "DONE":
        sys.exit(f"{operation}: {state}")
    agent.release_xfer_handle(handle)


if side == "server":
    memory[1].fill(2)
    tell(peer, [agent.get_agent_metadata().hex(), [block.address for block in memory]])
    hear(peer)
    memory[0].check(1, "written")
    tell(peer, "checked")
    hear(peer)
else:
    metadata, remote = hear(peer)
    agent.add_remote_agent(bytes.fromhex(metadata))
    memory[0].fill(1)
    transfer("WRITE", memory[0].address, remote[0])
    tell(peer, "written")
    hear(peer)
    transfer("READ", memory[1].address, remote[1])
    memory[1].check(2, "read")
    tell(peer, "done")

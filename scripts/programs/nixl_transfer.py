#!/usr/bin/env python3
"""nixl_transfer.py server|client HOST PORT: the client writes to the server's memory and reads from it, by NIXL over UCX. Each byte is
compared. UCX_TLS says by which transport."""

import sys
import time
from functools import partial

from nixl._api import nixl_agent, nixl_agent_config

from two_ends import SIZE, Memory, exchange

side, server = sys.argv[1], (sys.argv[2], int(sys.argv[3]))
agent = nixl_agent(side, nixl_agent_config(backends=["UCX"]))
memory = [Memory(), Memory()]
regions = [(block.address, SIZE, 0, "") for block in memory]
agent.register_memory(regions, "DRAM")


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


def attach(metadata):
    agent.add_remote_agent(bytes.fromhex(metadata))
    return partial(transfer, "WRITE"), partial(transfer, "READ")


exchange(side, server, agent.get_agent_metadata().hex(), memory, attach)

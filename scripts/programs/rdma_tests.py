#!/usr/bin/env python3
"""rdma_tests.py [--hosts SERVER,CLIENT [--in NAMESPACE,NAMESPACE]] RESULTS DEVICE GID MODULE...: runs these modules of rdma-core's tests,
which are in the directory tests here.

With --hosts the two processes of a test of rdma_cm have these addresses: each its own, over a private link and between these network
namespaces, or both the same, as on a NIC they share the address of its network interface.

Writes a line for each test: its name, its result (ok, skipped, failed) and why, with tabs between. Ends with 1 if one failed.

A child of a test that crashes is a failure. The tests themselves take it for a success: they look at exit codes of 1 and more.
"""

import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
import unittest

hosts = namespaces = None
if sys.argv[1] == "--hosts":
    hosts = sys.argv[2].split(",")
    del sys.argv[1:3]
if sys.argv[1] == "--in":
    namespaces = sys.argv[2].split(",")
    del sys.argv[1:3]
results, device, gid, *modules = sys.argv[1:]
# The tests read their options from here.
sys.argv[1:] = ["--dev", device, "--gid", gid]
sys.path.insert(0, "tests")
importlib.import_module("args_parser").parser.parse_args()
sys.path.insert(0, ".")


def two_hosts(server):
    """Gives a process its own address, where a test names that of the server as its own."""
    base = importlib.import_module("tests.base")
    # They ask for the address of a network interface.
    base.RDMATestCase._get_ip_mac = lambda test, *of: test.args.append([*of, server, "00:00:00:00:00:00"])
    for module in importlib.import_module("tests.base_rdmacm"), importlib.import_module("tests.rdmacm_utils"):
        module.AddrInfo = of_two_hosts(module.AddrInfo, server)


def of_two_hosts(base, server):
    """The class of address information, of which the source is this process's own address in place of the server's."""

    def own(src):
        return here if src == server else src

    class AddrInfo(base):
        def __new__(cls, src=None, **more):
            return base.__new__(cls, src=own(src), **more)

        def __init__(self, src=None, **more):
            super().__init__(src=own(src), **more)

        # Of later releases.
        def get_addrinfo(self, src=None, *rest, **more):
            super().get_addrinfo(own(src), *rest, **more)

    return AddrInfo


def be_host(end):
    """What this process starts is on this host from now on. The library reads it when a child opens the device."""
    global here
    here = hosts[end]
    if not namespaces:
        # The addresses of this host are those of both.
        if hosts[0] != hosts[1]:
            os.environ["ROCE_ADDR"] = here
        return
    with open(f"/run/netns/{namespaces[end]}") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
            sys.exit(f"{namespace.name}: {os.strerror(ctypes.get_errno())}")


if hosts:
    two_hosts(hosts[0])

children = []
start = multiprocessing.process.BaseProcess.start


def start_and_remember(child):
    if hosts:
        be_host(0 if child._kwargs["passive"] else 1)
    start(child)
    children.append(child)


multiprocessing.process.BaseProcess.start = start_and_remember


def crashed():
    """The signals that ended children, but for the one with which a test ends them itself."""
    # A test does not wait for those that it ends: the next one would meet them at their socket.
    for child in children:
        child.join()
    codes = [child.exitcode for child in children]
    children.clear()
    return [signal.Signals(-code).name for code in codes if code is not None and code < 0 and code != -signal.SIGTERM]


class Result(unittest.TextTestResult):
    def note(self, test, result, why=""):
        name = test.id().removeprefix("tests.")
        lines = [line.strip() for line in why.splitlines() if line.strip()]
        self.lines.append("\t".join([name, result, lines[-1].replace("\t", " ") if lines else ""]))

    lines = []

    def addSuccess(self, test):
        signals = crashed()
        if signals:
            return self.addFailure(test, (AssertionError, AssertionError("a child ended by " + ", ".join(signals)), None))
        super().addSuccess(test)
        self.note(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skipped", reason)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.note(test, "failed", str(error[1]) or error[0].__name__)

    addError = addFailure


# Each is loaded by its name; what the package finds in its folder by itself are all modules.
tests = unittest.TestSuite(
    unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module("tests." + module)) for module in modules
)
ran = unittest.TextTestRunner(verbosity=2, resultclass=Result).run(tests)
with open(results, "w") as file:
    file.writelines(line + "\n" for line in Result.lines)
sys.exit(not ran.wasSuccessful())

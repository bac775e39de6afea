#!/usr/bin/env python3
"""rdma_tests.py RESULTS DEVICE GID MODULE...: runs these modules of rdma-core's tests, which are in the directory tests here.

Writes a line for each test: its name, its result (ok, skipped, failed) and why, with tabs between. Ends with 1 if one failed.

A child of a test that crashes is a failure. The tests themselves take it for a success: they look at exit codes of 1 and more.
"""

import importlib
import multiprocessing
import signal
import sys
import unittest

results, device, gid, *modules = sys.argv[1:]
# The tests read their options from here.
sys.argv[1:] = ["--dev", device, "--gid", gid]
sys.path.insert(0, "tests")
importlib.import_module("args_parser").parser.parse_args()
sys.path.insert(0, ".")

children = []
start = multiprocessing.process.BaseProcess.start


def start_and_remember(child):
    start(child)
    children.append(child)


multiprocessing.process.BaseProcess.start = start_and_remember


def crashed():
    """The signals that ended children, but for the one with which a test ends them itself."""
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

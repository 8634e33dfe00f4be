"""One line for each scenario, and an exit code that says whether all went well."""

import os
import sys
import time
import traceback

CONNECTION = os.environ.get("SPRAG_SERVICEBUS", "")
_failed = []
_passed = 0
_only = sys.argv[1] if len(sys.argv) > 1 else ""


def scenario(name):
    def run(function):
        global _passed
        if _only not in name:
            return function
        began = time.monotonic()
        try:
            said = function()
            _passed += 1
            print(f"ok   {name} ({time.monotonic() - began:.2f} s){'' if said is None else f' {said}'}", flush=True)
        except BaseException as error:  # An interrupt ends the scenario too, and is told.
            _failed.append(name)
            print(f"FAIL {name} ({time.monotonic() - began:.2f} s): {type(error).__name__}: {str(error)[:500]}", flush=True)
            traceback.print_exc()
            if isinstance(error, KeyboardInterrupt):
                raise
        return function

    return run


def raises(kind, action):
    try:
        action()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected")


def equal(found, expected):
    assert found == expected, f"{found!r} instead of {expected!r}"


def end():
    print(f"{_passed} passed, {len(_failed)} failed {_failed or ''}", flush=True)
    # Threads of the SDK do not hold up the end.
    sys.stdout.flush()
    os._exit(1 if _failed or not _passed else 0)

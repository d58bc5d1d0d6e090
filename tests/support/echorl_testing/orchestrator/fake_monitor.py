"""A monitor's process by script: it does what the opening's ``does`` says, and keeps rows in the file ``kept``.

It ``works`` or ``refuses`` the opening. Or, at its second row unless the file ``kept`` is there already, it ``hangs``
or ``dies``, leaves ``half`` an answer, answers something ``other`` than an object, or never ends its ``long`` answer.
"""

import json
import os
import sys
import time
from pathlib import Path

FOREVER_S = 3600.0
ODD = {"half": '{"writ', "other": "[1]\n", "long": "x" * 200_000}


def main() -> None:
    opening = json.loads(sys.stdin.readline())
    kept = Path(opening["kept"])
    does = opening["does"]
    if does == "refuses":
        answer({"failed": f"no entry with {os.environ['A_SECRET']}"})
        sys.exit(1)
    trouble = None if kept.exists() else does
    answer({"open": True})
    for number, line in enumerate(sys.stdin):
        if number == 1 and trouble == "hangs":
            time.sleep(FOREVER_S)
        if number == 1 and trouble == "dies":
            sys.stderr.write(f"out of memory near {os.environ['A_SECRET']}\n")
            sys.exit(7)
        if number == 1 and trouble in ODD:
            sys.stdout.write(ODD[trouble])
            sys.stdout.flush()
            sys.exit(0)
        with kept.open("a") as file:
            file.write(line)
        answer({"written": True})


def answer(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

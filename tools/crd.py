"""``python -m tools.crd > crds/echorlruns.yaml``; with ``--keep`` as the chart holds it."""

import sys

from echorl_manifest.crd.assembly import crd_text

if __name__ == "__main__":
    sys.stdout.write(crd_text(keep="--keep" in sys.argv[1:]))

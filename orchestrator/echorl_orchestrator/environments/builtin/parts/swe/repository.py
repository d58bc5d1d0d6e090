"""The work tree of a row in a sandbox: the baseline, the diff against it, and how a diff comes into another sandbox.

The baseline is a commit in a repository of ours, beside the work tree and out of the task's ``.git``: whatever an agent
does to that, its diff is that of the files. Attributes that could change a file's bytes on the way do not count there.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from echorl_orchestrator.environments.builtin.parts.swe.box import HARNESS, Box, joined

PATCH = f"{HARNESS}/agent.patch"
_BASE, _HOME = f"{HARNESS}/base.git", f"{HARNESS}/home"
_CHANGED, _PROTECTED = f"{HARNESS}/changed", f"{HARNESS}/protected"
_LONGEST_LIST_BYTES = 16 << 20
SETTINGS_OF_TESTS = frozenset(
    {
        *("conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml"),
        *("sitecustomize.py", "usercustomize.py", "entry_points.txt"),
    }
)
"""Names of files that decide what a test run does: put back before it, wherever they stand."""
_GIT_CONFIG = b"""[user]
\tname = echorl
\temail = echorl@localhost
[init]
\tdefaultBranch = main
[safe]
\tdirectory = *
[core]
\tautocrlf = false
\tfsmonitor = false
\thooksPath = /dev/null
\texcludesFile = /dev/null
\tfileMode = true
\tsymlinks = true
[gc]
\tauto = 0
[commit]
\tgpgSign = false
[advice]
\taddEmbeddedRepo = false
"""
_ENVIRONMENT = f"""
set -u
cd "$1" || exit 1
export HOME={_HOME} GIT_DIR={_BASE} GIT_WORK_TREE="$1" GIT_CONFIG_NOSYSTEM=1 GIT_LITERAL_PATHSPECS=1
export GIT_AUTHOR_DATE=2000-01-01T00:00:00Z GIT_COMMITTER_DATE=2000-01-01T00:00:00Z
own() {{ env -u GIT_DIR -u GIT_WORK_TREE git "$@"; }}
staged() {{ GIT_INDEX_FILE={_BASE}/after git "$@"; }}
all() {{ rm -f {_BASE}/after && staged read-tree HEAD && staged add -A; }}
"""
_BASELINE = (
    _ENVIRONMENT
    + """
set -e
git --version > /dev/null || { echo "the image has no git"; exit 3; }
if [ -n "$2" ]; then
    own merge-base --is-ancestor "$2" HEAD || { echo "HEAD does not descend from base_commit $2"; exit 3; }
fi
git init -q
mkdir -p "$GIT_DIR/info"
echo '* -text -ident -filter -working-tree-encoding' > "$GIT_DIR/info/attributes"
# No pipes in these scripts: a shell does not say that the first command of one was killed.
if [ -e .git ]; then
    own ls-files -z > "$GIT_DIR/listed"
    git update-index -z --add --remove --stdin < "$GIT_DIR/listed"
fi
git add -A
git commit -q --allow-empty -m base
if [ -n "$3" ] && [ -e .git ]; then
    rm -rf .git
    own init -q
    own fetch -q --no-tags "$GIT_DIR" HEAD
    own reset -q FETCH_HEAD
    rm -rf .git/logs .git/FETCH_HEAD .git/ORIG_HEAD
fi
# Where a sandbox has one user under two names, there is nobody to give it to.
if [ -n "$3" ]; then chown -hR "$3" "$1" 2> /dev/null || true; fi
git rev-parse HEAD
"""
)
_DIFF = (
    _ENVIRONMENT
    + f"""
all || exit
staged diff --cached --binary --full-index --no-renames --no-ext-diff --no-textconv --no-color \\
    --ignore-submodules=all --src-prefix=a/ --dst-prefix=b/ "$2" > {PATCH}
"""
)
_APPLY = (
    _ENVIRONMENT
    + f"""
for rung in 1 2 3; do
    case $rung in
        1) git apply --whitespace=nowarn {PATCH} ;;
        2) git apply --3way --whitespace=nowarn {PATCH} ;;
        3) patch -p1 --batch --fuzz=5 --no-backup-if-mismatch -i {PATCH} ;;
    esac && {{
        all && staged diff --cached --name-only --no-renames -z HEAD > {_CHANGED} || exit
        echo "$rung"
        exit 0
    }}
    # Who was killed has not said that the diff does not apply.
    ended=$?; [ $ended -ne 137 ] || exit $ended
    git reset -q --hard && git clean -ffdq || exit
done
exit 3
"""
)
_RESTORE = (
    _ENVIRONMENT
    + f"""
set -e
git read-tree HEAD
xargs -0 rm -rf -- < {_PROTECTED}
xargs -0 git ls-files -z -- < {_PROTECTED} > {_BASE}/listed
git checkout-index -f -z --stdin < {_BASE}/listed
"""
)
_TESTS = _ENVIRONMENT + 'git apply --whitespace=nowarn "$2"\n'
_COMMIT = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})\s*\Z")


@dataclass(frozen=True)
class Applied:
    """A diff that has come into a sandbox."""

    rung: int
    """0: there was nothing to apply; 1: as it is; 2: by a three-way merge; 3: by ``patch``, with fuzz."""
    changed: frozenset[str]
    """Paths that it changed."""


async def record_baseline(box: Box, workdir: str, base_commit: str | None, owner: str, *, seconds: float) -> str:
    """Commit the work tree as it is to a repository of ours; the commit's name.

    Args:
        box: the sandbox, after the row's set-up.
        workdir: of the row.
        base_commit: of the row; HEAD must descend from it.
        owner: ``uid:gid`` that gets the work tree, whose own repository then has this one commit and neither history
            nor remotes; empty: all stays.
        seconds: for all of it.

    Raises:
        HarnessError: there is no baseline.
    """
    await box.put(f"{_HOME}/.gitconfig", _GIT_CONFIG)
    ran = await box.shell(_BASELINE, workdir, base_commit or "", owner, seconds=seconds)
    commit = _COMMIT.search(ran.output)
    if not ran.well or commit is None:
        box.failed("baseline", ran.told())
    return commit[1]


async def taken_diff(box: Box, workdir: str, base: str, *, longest: int, seconds: float) -> tuple[bytes | None, str]:
    """The work tree's diff against the baseline, untracked files included; None, and why, where none can be taken."""
    ran = await box.shell(_DIFF, workdir, base, seconds=seconds)
    if not ran.well:
        return None, ran.told()
    diff = await box.get(PATCH, longest)
    return (diff, "") if diff is not None else (None, f"it has more than {longest} bytes")


async def apply(box: Box, workdir: str, diff: bytes, *, seconds: float) -> Applied | None:
    """Bring a diff into a work tree that is at its baseline; None where it applies in no way. An empty one does.

    Raises:
        HarnessError: the work tree could not be brought back between two tries, or in time.
    """
    if not diff:
        return Applied(0, frozenset())
    await box.put(PATCH, diff)
    ran = await box.shell(_APPLY, workdir, seconds=seconds)
    if ran.code == 3 and not ran.late:
        return None
    changed = await box.get(_CHANGED, _LONGEST_LIST_BYTES) if ran.well else None
    if changed is None:
        box.failed("apply", ran.told())
    names = changed.decode("utf-8", "surrogateescape").split("\0")
    return Applied(int(ran.output.split()[-1]), frozenset(name for name in names if name))


def to_restore(changed: Collection[str], tests: Collection[str], allowed: Collection[str]) -> list[str]:
    """What is put back before the tests run, whatever a fix made of it: shortest paths first.

    Args:
        changed: paths that the fix changed.
        tests: files that the tests are in.
        allowed: settings of tests that the row's own fix changes too.
    """
    found = {path for path in changed if PurePosixPath(path).name in SETTINGS_OF_TESTS and path not in allowed}
    for path in tests:
        found.add(path)
        # A folder of tests that became a file, or a link to somewhere else.
        found |= {str(parent) for parent in PurePosixPath(path).parents if str(parent) in changed}
    return sorted(found, key=lambda path: (path.count("/"), path))


async def restore(box: Box, workdir: str, paths: Sequence[str], *, seconds: float) -> None:
    """Put ``paths`` back to the baseline; those that it does not have are removed.

    Raises:
        HarnessError: that could not be done.
    """
    if not paths:
        return
    await box.put(_PROTECTED, joined(paths))
    ran = await box.shell(_RESTORE, workdir, seconds=seconds)
    if not ran.well:
        box.failed("restore the tests", ran.told())


async def apply_tests(box: Box, workdir: str, diff: bytes, *, seconds: float) -> None:
    """Bring the row's own diff of tests into the work tree.

    Raises:
        HarnessError: it does not apply.
    """
    place = f"{HARNESS}/tests.patch"
    await box.put(place, diff)
    ran = await box.shell(_TESTS, workdir, place, seconds=seconds)
    if not ran.well:
        box.failed("test_patch", ran.told())

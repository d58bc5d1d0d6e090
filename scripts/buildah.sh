#!/usr/bin/env bash
# buildah as the images are built: no daemon, storage of its own outside the tree. Needs root.
#   scripts/buildah.sh images
#   scripts/buildah.sh rmi --all     frees the disk
set -euo pipefail
storage=${XDG_CACHE_HOME:-$HOME/.cache}/echorl/containers

fail() { echo "buildah: $*" >&2; exit 2; }

[ "$(id -u)" = 0 ] || fail "root is needed"
if ! command -v buildah >/dev/null; then
  command -v apt-get >/dev/null || fail "buildah is missing, and no apt-get to install it"
  install=(apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=120 buildah)
  export DEBIAN_FRONTEND=noninteractive
  "${install[@]}" >/dev/null 2>&1 || { apt-get update -qq >/dev/null && "${install[@]}" >/dev/null; } ||
    fail "buildah could not be installed"
fi
export BUILDAH_ISOLATION=chroot
exec buildah --root "$storage/storage" --runroot "$storage/run" --storage-driver overlay "$@"

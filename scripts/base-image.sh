#!/usr/bin/env bash
# Makes the image that stands in for the public base where no registry can be reached: Debian with its own Python.
#   scripts/base-image.sh NAME      nothing is done where the image is there
# MIRROR=URL: where Debian's packages come from, if not debootstrap's default.
set -euo pipefail
cd "$(dirname "$0")/.."
name=$1
buildah=scripts/buildah.sh

fail() { echo "base-image: $*" >&2; exit 2; }

"$buildah" inspect --type image "$name" >/dev/null 2>&1 && exit 0
if ! command -v debootstrap >/dev/null; then
  command -v apt-get >/dev/null || fail "debootstrap is missing, and no apt-get to install it"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=120 debootstrap \
    >/dev/null || fail "debootstrap could not be installed"
fi
root=$(mktemp -d) container=""
clean() {
  [ -z "$container" ] || "$buildah" rm "$container" >/dev/null
  rm -rf "$root"
}
trap clean EXIT
echo "base-image: $name from Debian packages"
debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$root" ${MIRROR:+"$MIRROR"} \
  >"$root.log" 2>&1 || { tail -n 20 "$root.log" >&2; rm -f "$root.log"; fail "debootstrap failed"; }
rm -rf "$root.log" "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* "$root"/dev/*
chmod 755 "$root"
container=$("$buildah" from --signature-policy images/signature-policy.json scratch)
"$buildah" add --quiet "$container" "$root" / >/dev/null
"$buildah" config --cmd python3 "$container"
"$buildah" commit --quiet --signature-policy images/signature-policy.json "$container" "$name" >/dev/null

#!/usr/bin/env bash
# Builds the images with buildah, from the repository as it is.
#   scripts/images.sh [IMAGE...]    operator orchestrator trainer inference-cpu inference sandbox-daemon; none: all
# BASE=IMAGE: Debian 12 or newer with Python 3.11; default python:3.11-slim-bookworm, or where it cannot be pulled,
# an image made from Debian's packages. GO: builds the sandbox daemon, where no go is on PATH. SSL_CERT_FILE, UV_CACHE_DIR: used while building, kept out of the images.
set -euo pipefail
cd "$(dirname "$0")/.."
all=(operator orchestrator trainer inference-cpu inference sandbox-daemon)
public=python:3.11-slim-bookworm
stand_in=echorl.test/base:bookworm
policy=(--signature-policy images/signature-policy.json)
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' core/echorl_core/__init__.py)
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
cache=${UV_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/uv}

fail() { echo "images: $*" >&2; exit 2; }

choose_base() {
  [ -z "${BASE:-}" ] || return 0
  if timeout 120 scripts/buildah.sh pull --quiet "${policy[@]}" "$public" >/dev/null 2>&1; then
    BASE=$public
  else
    BASE=$stand_in
    scripts/base-image.sh "$BASE"
  fi
}

daemon() { # folder that gets the program
  local go=${GO:-$(command -v go || echo /usr/local/go/bin/go)}
  [ -x "$go" ] || fail "echorl/sandbox-daemon is built with Go 1.26 or newer: none at $go, and none on PATH (set GO)"
  (cd images/sandbox-daemon && CGO_ENABLED=0 GOFLAGS=-buildvcs=false GOWORK=off \
    "$go" build -trimpath -ldflags "-s -w -X main.version=$version" -o "$1/daemon" .)
}

build() { # image
  local image=$1 folder=${1%-cpu} context=. began=$SECONDS
  local options=(--layers --quiet --file "images/$folder/Dockerfile" --tag "echorl/$image:$version")
  options+=(--build-arg "BASE=${BASE:-}" --build-arg "VERSION=$version" --build-arg "REVISION=$revision")
  case "$image" in
    inference) options+=(--build-arg VARIANT=cuda) ;;
    inference-cpu) options+=(--build-arg VARIANT=cpu) ;;
  esac
  # Mounted for the time of each step, at folders that the base has: nothing of it is in a layer.
  mkdir -p "$cache"
  options+=(--volume "$cache:/srv:rw" --build-arg UV_CACHE_DIR=/srv)
  if [ -n "${SSL_CERT_FILE:-}" ]; then
    options+=(--volume "$(dirname "$(realpath "$SSL_CERT_FILE")"):/media:ro")
    local inside; inside=/media/$(basename "$(realpath "$SSL_CERT_FILE")")
    options+=(--build-arg "SSL_CERT_FILE=$inside" --build-arg "PIP_CERT=$inside")
  fi
  if [ "$image" = sandbox-daemon ]; then
    context=$made
    daemon "$context"
  fi
  echo "images: building echorl/$image:$version, free: $(df -h --output=avail "${XDG_CACHE_HOME:-$HOME/.cache}" | tail -1 | tr -d ' ')"
  scripts/buildah.sh bud "${policy[@]}" "${options[@]}" "$context" >/dev/null
  echo "images: echorl/$image:$version after $((SECONDS - began)) s"
}

forget_stages() { # buildah 1.28 keeps the containers, and mounts, of stages without steps
  scripts/buildah.sh containers --format '{{.ContainerName}}' | grep -E '^[0-9a-f]{12}-working-container' |
    xargs -r scripts/buildah.sh rm >/dev/null || true
}

images=("$@")
[ "${#images[@]}" -gt 0 ] || images=("${all[@]}")
for image in "${images[@]}"; do
  [[ " ${all[*]} " == *" $image "* ]] || fail "found $image, accepted are: ${all[*]}"
done
mkdir -p "${XDG_CACHE_HOME:-$HOME/.cache}/echorl"
exec 9>"${XDG_CACHE_HOME:-$HOME/.cache}/echorl/images.lock"
flock 9 # one build at a time: the next one finds its layers
made=$(mktemp -d)
trap 'rm -rf "$made"; forget_stages' EXIT
[ "${images[*]}" = sandbox-daemon ] || choose_base
for image in "${images[@]}"; do build "$image"; done

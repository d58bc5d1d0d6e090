#!/usr/bin/env bash
# Writes what an installation takes that has neither this repository nor a registry with our images: both charts as Helm
# packages, images that `make images` has built as archives, and checksums of all.
#   scripts/package.sh FOLDER [IMAGE...]    no IMAGE: all that are built; "-": none
# HELM: the program, where it is not on PATH. Images need root, as buildah does.
set -euo pipefail
cd "$(dirname "$0")/.."
all=(operator orchestrator trainer inference-cpu inference sandbox-daemon)
helm=${HELM:-helm}
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' core/echorl_core/__init__.py)
policy=(--signature-policy images/signature-policy.json)

fail() { echo "package: $*" >&2; exit 2; }

is_built() { scripts/buildah.sh inspect --type image "localhost/echorl/$1:$version" >/dev/null 2>&1; }

[ "$#" -gt 0 ] || fail "found no folder to write to"
folder=$1; shift
command -v "$helm" >/dev/null || fail "found no $helm (HELM names another; make cluster-up HELM=1 builds one)"
images=()
if [ "$#" = 0 ]; then
  for image in "${all[@]}"; do ! is_built "$image" || images+=("$image"); done
elif [ "$*" != - ]; then
  images=("$@")
fi
for image in ${images[@]+"${images[@]}"}; do
  [[ " ${all[*]} " == *" $image "* ]] || fail "found $image, accepted are: ${all[*]}, or - for none"
  is_built "$image" || fail "echorl/$image:$version is not built: make images IMAGES=$image"
done
mkdir -p "$folder"
for chart in echorl-crds echorl; do "$helm" package --destination "$folder" "charts/$chart" >/dev/null; done
for image in ${images[@]+"${images[@]}"}; do
  archive=$folder/echorl-$image-$version.tar
  rm -f "$archive" # buildah adds to none that is there
  echo "package: $archive"
  scripts/buildah.sh push --quiet "${policy[@]}" "localhost/echorl/$image:$version" "docker-archive:$archive:echorl/$image:$version"
done
(cd "$folder" && sha256sum echorl-*.tgz $(ls echorl-*.tar 2>/dev/null) >SHA256SUMS)
echo "package: $(wc -l <"$folder/SHA256SUMS") files in $folder"

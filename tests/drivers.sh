#!/bin/sh
# Vulkan drivers for the CPU that this machine need not have: the newest lavapipe of Debian, and SwiftShader, which Chromium carries.
# They are unpacked into a folder, not installed. Then FOLDER/lavapipe/bin/python and FOLDER/swiftshader/bin/python are the given
# Python with its packages on that driver. Each of them runs some drawn cases of conformance.
#   sh tests/drivers.sh FOLDER [PYTHON [CASES]]    PYTHON: python; CASES: 96, 0 for all that `tvmdml conformance` draws
set -eu
folder=$1 python=$(command -v "${2:-python}") cases=${3:-96}
suite=sid keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# The mirror that the system's own packages come from.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep '/debian/*$' | head -n 1)
if [ -z "$mirror" ] || [ ! -e "$keyring" ]; then
  echo "not tried on other Vulkan drivers: they are unpacked from Debian's packages, which needs apt-get with a mirror, and $keyring"
  exit 0
fi
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

if [ ! -e "$folder/here" ]; then
  apt=$folder/apt
  mkdir -p "$apt/lists/partial" "$apt/archives/partial"
  echo "deb [signed-by=$keyring] $mirror $suite main" >"$apt/sources.list"
  # Its own lists: nothing of the system's packages is read or changed.
  get() {
    apt-get -qq -o Dir::State="$apt" -o Dir::Cache="$apt" -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=- \
      -o Dir::State::Status=/dev/null -o APT::Sandbox::User= -o Acquire::Retries=1 -o Acquire::http::Timeout=20 "$@"
  }
  if ! { get update && get install -y --download-only --no-install-recommends mesa-vulkan-drivers && (cd "$apt" && get download chromium-common); }; then
    echo "not tried on other Vulkan drivers: $mirror could not be reached, or lacks their packages"
    exit 0
  fi
  for package in "$apt"/archives/*.deb; do dpkg-deb -x "$package" "$folder/root"; done
  dpkg-deb --fsys-tarfile "$apt"/chromium-common_*.deb | tar -xC "$folder/root" --wildcards '*/libvk_swiftshader.so' '*/vk_swiftshader_icd.json'
  rm -r "$apt"
  touch "$folder/here"
fi

library() { find "$folder/root/usr/lib" -name "$1" | head -n 1; }
loader=$(find "$folder/root/usr/" -name 'ld-linux*.so*' | head -n 1)
system=$(dirname "$(library libvulkan.so.1)")
base=$("$python" -c 'import os, sys; print(os.path.realpath(sys._base_executable))')
packages=$("$python" -c 'import sys; print(sys.prefix)')

status=0
for driver in lavapipe swiftshader; do
  own=$folder/$driver
  mkdir -p "$own/bin"
  ln -sfn "$packages/lib" "$own/lib"
  echo "home = $(dirname "$base")" >"$own/pyvenv.cfg"
  case $driver in lavapipe) name=libvulkan_lvp.so ;; *) name=libvk_swiftshader.so ;; esac
  echo "{\"file_format_version\": \"1.0.0\", \"ICD\": {\"library_path\": \"$(library $name)\", \"api_version\": \"1.3.0\"}}" >"$own/driver.json"
  # Processes that this Python starts find it by its own name, so that they have the driver, too.
  cat >"$own/bin/python" <<EOF
#!/bin/sh
export VK_DRIVER_FILES="$own/driver.json" VK_ICD_FILENAMES="$own/driver.json"
exec "$loader" --library-path "$system" --argv0 "$own/bin/python" "$base" "\$@"
EOF
  chmod +x "$own/bin/python"
  "$own/bin/python" "$(dirname "$0")/drawn_conformance.py" "$cases" || status=1
done
exit $status

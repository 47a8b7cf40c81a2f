#!/bin/sh
# What some tests need from the system: a Vulkan driver that works without a GPU, tools that check shaders, and a C++ compiler, which
# CUDA's emulator takes. Installs it where that is possible without asking anybody; elsewhere those tests are skipped, and say so.
set -eu
packages="g++ libvulkan1 mesa-vulkan-drivers spirv-tools vulkan-validationlayers"

missing=""
if command -v dpkg-query >/dev/null; then
  for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q "install ok installed" || missing="$missing $package"
  done
else
  missing=" $packages"
fi

if [ -z "$missing" ]; then
  exit 0
elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get update -q
  # shellcheck disable=SC2086 # a list of words
  DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $missing
else
  echo "not here, and not installed without being root on Debian or Ubuntu:$missing (tests that need them are skipped)"
fi

#!/bin/sh
# 64-bit Arm, emulated: a pack that is built here for aarch64 gives the host's results there, and the C header's program runs.
# An emulator (QEMU), a cross compiler, Python for Arm and its packages are unpacked into a folder, not installed.
#   sh tests/arm.sh FOLDER [PYTHON [CASES]]    PYTHON: python; CASES: 64, 0 for all that `tvmdml conformance` draws
set -eu
folder=$1 python=$(command -v "${2:-python}") cases=${3:-64}
tests=$(cd "$(dirname "$0")" && pwd)
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
not_tried() {
  echo "not tried on emulated Arm: $*"
  exit 0
}

"$python" -c "import pytest, tvmdml, tvm" || not_tried "$python needs what \`pip install -e '.[test]'\` installs"
[ "$(uname -m)" = x86_64 ] || not_tried "this is done on x86-64 processors, and here is $(uname -m)"
# The mirror and the suite that the system's own packages come from: programs for this machine then fit its libraries.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep '/debian/*$' | head -n 1)
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-sid}")
if [ -z "$mirror" ] || [ ! -e "$keyring" ]; then
  not_tried "what it needs is unpacked from Debian's packages, which takes apt-get with a mirror, and $keyring"
fi
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

if [ ! -e "$folder/here" ]; then
  # Unpacks packages for a processor, and all that they need. It has its own lists: nothing of the system's is read or changed.
  unpack() {
    processor=$1 apt=$folder/apt
    shift
    mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$folder/$processor"
    echo "deb [signed-by=$keyring] $mirror $suite main" >"$apt/sources.list"
    for command in update "install -y --download-only --no-install-recommends $*"; do
      # shellcheck disable=SC2086 # a list of words
      apt-get -qq -o Dir::State="$apt" -o Dir::Cache="$apt" -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=- \
        -o Dir::State::Status=/dev/null -o APT::Sandbox::User= -o Acquire::Retries=1 -o Acquire::http::Timeout=20 \
        -o APT::Architecture="$processor" -o APT::Architectures="$processor" $command || not_tried "$mirror could not be reached, or lacks: $*"
    done
    for package in "$apt"/archives/*.deb; do
      case $package in
        */libc6_*_amd64.deb) ;; # the system's own
        *) dpkg-deb -x "$package" "$folder/$processor" ;;
      esac
    done
    [ -e "$folder/$processor/lib" ] || ln -s usr/lib "$folder/$processor/lib"
    rm -r "$apt"
  }
  unpack amd64 qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross
  unpack arm64 python3 libpython3-dev libstdc++6
  touch "$folder/here"
fi

host=$folder/amd64 arm=$folder/arm64
version=$(basename "$(readlink "$arm/usr/bin/python3")" | sed s/python//)
emulator=$(find "$host/usr/bin" -name qemu-aarch64-static -o -name qemu-aarch64 | head -n 1)
mkdir -p "$folder/bin"
cat >"$folder/bin/aarch64-linux-gnu-gcc" <<END
#!/bin/sh
LD_LIBRARY_PATH="$(dirname "$(find "$host/usr/lib" -name 'libmpc.so.*' | head -n 1)")" exec "$host/usr/bin/aarch64-linux-gnu-gcc" --sysroot="$host" "\$@"
END
chmod +x "$folder/bin/aarch64-linux-gnu-gcc"
ln -sf "$emulator" "$folder/bin/qemu-aarch64-static"
export PATH="$folder/bin:$PATH" QEMU_LD_PREFIX="$arm"

packages=$folder/packages-$version
if [ ! -e "$packages" ]; then
  needed=$("$python" -c 'import importlib.metadata as m; print(*(one.replace(" ", "") for one in m.requires("tvmdml") if ";" not in one))')
  # shellcheck disable=SC2086 # a list of words
  "$python" -m pip install -q --target "$packages.new" --only-binary :all: --python-version "$version" \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 $needed ||
    not_tried "pip has no wheels for it"
  mv "$packages.new" "$packages"
fi

# The package as it is now, with its C extension for Arm.
rm -rf "$folder/tvmdml"
mkdir "$folder/tvmdml"
cp -RL --preserve=timestamps "$("$python" -c 'import tvmdml; print(tvmdml.__path__[0])')" "$folder/tvmdml/tvmdml"
cd "$folder/tvmdml/tvmdml/targets/cpu"
rm -f _native*.so
aarch64-linux-gnu-gcc -shared -fPIC -std=c11 -O2 -Wall -Wextra -Werror -Wno-missing-field-initializers -fvisibility=hidden \
  -ftls-model=initial-exec -pthread -isystem "$arm/usr/include/python$version" -idirafter "$arm/usr/include" -o _native.so \
  native/launch.c native/library.c native/module.c native/plans.c native/pool.c native/sequence.c

work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
cd "$tests/.."
"$python" -m pytest -q --full tests/packs/test_pack_header.py -k built_for_another_machine
"$python" tests/arm_runs.py build "$work/pack" "$cases"
status=0
PYTHONPATH="$folder/tvmdml:$packages" qemu-aarch64-static "$arm/usr/bin/python$version" "$tests/arm_runs.py" run "$work/pack" "$work/results" || status=1
[ ! -e "$work/results" ] || "$python" tests/arm_runs.py compare "$work/pack" "$work/results" || status=1
exit $status

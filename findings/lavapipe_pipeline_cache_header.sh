#!/usr/bin/env bash
# Mesa's lavapipe 22.3.6 and 26.2.6 (Debian's mesa-vulkan-drivers of bookworm and sid): the size that vkGetPipelineCacheData says, and
# the UUID of its header.
#
# Expected: pDataSize becomes "the amount of data actually written", which is 32 bytes or more, as VkPipelineCacheHeaderVersionOne has.
# Seen: both answer 32 when they are asked for the size, and write a whole header. Then 22.3.6 leaves pDataSize as it was given, even
# if it was much more, and 26.2.6 makes it 20, less than its header says. A program that stores as many bytes as it is told stores
# 4,064 that nobody wrote, or half of a header, and a cache that is checked before it is used is never used. The pipelineCacheUUID of
# 22.3.6 is the text "val-%s", a format that nothing was filled into.
#
# Output:
#   22.3.6: asked 32, then of 4096 bytes 4096, headerSize 32, UUID of the driver "val-%s", of the header "val-%s"
#   26.2.6: asked 32, then of 4096 bytes 20, headerSize 32, UUID of the driver "26.2.6-1aaaaaaaa", of the header "26.2.6-1aaaaaaaa"
#   as described
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep '/debian/*$' | head -n 1)

# Unpacks packages of a suite, and all that they need, into a folder of its own.
unpack() {
  local suite=$1 apt=$folder/apt-$1
  shift
  mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$folder/$suite"
  echo "deb [signed-by=$keyring] $mirror $suite main" >"$apt/sources.list"
  for command in update "install -y --download-only --no-install-recommends $*"; do
    # shellcheck disable=SC2086 # a list of words
    apt-get -qq -o Dir::State="$apt" -o Dir::Cache="$apt" -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=- \
      -o Dir::State::Status=/dev/null -o APT::Sandbox::User= -o Acquire::Check-Valid-Until=false $command >/dev/null
  done
  for package in "$apt"/archives/*.deb; do dpkg-deb -x "$package" "$folder/$suite"; done
}
unpack bookworm mesa-vulkan-drivers=22.3.6-1+deb12u2 libvulkan-dev
unpack sid mesa-vulkan-drivers=26.2.6-1 libvulkan1

cat >"$folder/header.c" <<'C'
#include <stdio.h>
#include <string.h>
#include <vulkan/vulkan.h>

int main(void) {
    VkApplicationInfo application = {VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_1};
    VkInstanceCreateInfo instance_info = {VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &application};
    VkInstance instance;
    if (vkCreateInstance(&instance_info, NULL, &instance)) return 1;
    uint32_t count = 1;
    VkPhysicalDevice physical;
    if (vkEnumeratePhysicalDevices(instance, &count, &physical) < 0 || count != 1) return 2;
    VkPhysicalDeviceProperties properties;
    vkGetPhysicalDeviceProperties(physical, &properties);
    float priority = 1;
    VkDeviceQueueCreateInfo queue = {VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueCount = 1, .pQueuePriorities = &priority};
    VkDeviceCreateInfo device_info = {VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .queueCreateInfoCount = 1, .pQueueCreateInfos = &queue};
    VkDevice device;
    if (vkCreateDevice(physical, &device_info, NULL, &device)) return 3;
    VkPipelineCacheCreateInfo cache_info = {VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
    VkPipelineCache cache;
    if (vkCreatePipelineCache(device, &cache_info, NULL, &cache)) return 4;
    size_t size = 0;
    if (vkGetPipelineCacheData(device, cache, &size, NULL)) return 5;
    unsigned char data[4096] = {0};
    size_t room = sizeof data;
    if (vkGetPipelineCacheData(device, cache, &room, data)) return 6;
    uint32_t header;
    memcpy(&header, data, 4);
    printf("asked %zu, then of 4096 bytes %zu, headerSize %u, UUID of the driver \"%.16s\", of the header \"%.16s\"\n", size, room, header,
           (const char *)properties.pipelineCacheUUID, (const char *)data + 16);
    return 0;
}
C
library() { find "$folder/$1/" -name "$2" | head -n 1; }
system=$(dirname "$(library bookworm libvulkan.so)")
cc -I"$folder/bookworm/usr/include" "$folder/header.c" -o "$folder/header" "$system/libvulkan.so"

# On a suite's own C library and driver.
on() {
  local suite=$1
  echo "{\"file_format_version\": \"1.0.0\", \"ICD\": {\"library_path\": \"$(library "$suite" libvulkan_lvp.so)\", \"api_version\": \"1.3.0\"}}" >"$folder/driver.json"
  VK_DRIVER_FILES=$folder/driver.json VK_ICD_FILENAMES=$folder/driver.json \
    "$(library "$suite" 'ld-linux-*.so*')" --library-path "$(dirname "$(library "$suite" libvulkan.so.1)"):$(dirname "$(library "$suite" libc.so.6)")" "$folder/header"
}
printf '22.3.6: %s\n26.2.6: %s\n' "$(on bookworm)" "$(on sid)" | tee "$folder/seen"
diff "$folder/seen" - <<'END'
22.3.6: asked 32, then of 4096 bytes 4096, headerSize 32, UUID of the driver "val-%s", of the header "val-%s"
26.2.6: asked 32, then of 4096 bytes 20, headerSize 32, UUID of the driver "26.2.6-1aaaaaaaa", of the header "26.2.6-1aaaaaaaa"
END
echo "as described"

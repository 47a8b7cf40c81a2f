// The pretended devices' memory: the process's own. An allocation begins at a multiple of 256 bytes, as CUDA's do, and ends where
// a page without access begins; the few bytes left over hold a pattern, and new memory holds junk.
//
// TVMDML_EMULATED_MEMORY  bytes a device has: a number, with K, M or G behind it (4G)
#include "memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>

namespace tvmdml_emulator {

namespace {

constexpr size_t page = 4096, alignment = 256;
constexpr unsigned char junk = 0xd5, red = 0xbd;
constexpr size_t most_junk = 16 << 20;  // at either end of an allocation; a huge one stays unwritten between
constexpr size_t most_graves = 256;

// Never destroyed: threads go on while the process ends.
std::map<uintptr_t, Allocation> &live = *new std::map<uintptr_t, Allocation>;
std::map<int, size_t> &used = *new std::map<int, size_t>;  // by every device, with what its pools keep
std::deque<Allocation> &graves = *new std::deque<Allocation>;  // freed, without access: what still uses them faults, and nothing else is put there for a while

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

Memory &memory() {
  static Memory &one = *new Memory;
  return one;
}

size_t Memory::limit() {
  const char *value = getenv("TVMDML_EMULATED_MEMORY");
  if (!value || !*value) return size_t{4} << 30;
  char *unit;
  const double number = strtod(value, &unit);
  const int shift = *unit == 'G' ? 30 : *unit == 'M' ? 20 : *unit == 'K' ? 10 : 0;
  return static_cast<size_t>(number * static_cast<double>(size_t{1} << shift));
}

uintptr_t Memory::allocate(int device, size_t bytes, Pool *pool) {
  const size_t reused = pool ? std::min(bytes, pool->cached) : 0, taken = bytes - reused;
  if (taken > limit() || used[device] > limit() - taken) return 0;
  const size_t rounded = round_up(bytes, alignment), inside = round_up(rounded, page), mapped = inside + 2 * page;
  void *map = mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return 0;
  char *const first = static_cast<char *>(map) + page;
  if (mprotect(first, inside, PROT_READ | PROT_WRITE) != 0) {
    munmap(map, mapped);
    return 0;
  }
  char *const start = first + inside - rounded;
  memset(first, red, static_cast<size_t>(start - first));
  memset(start, junk, std::min(bytes, most_junk));
  memset(start + bytes - std::min(bytes, most_junk), junk, std::min(bytes, most_junk));
  memset(start + bytes, red, rounded - bytes);
  used[device] += taken;
  if (pool) {
    pool->cached -= reused;
    pool->used += bytes;
    pool->most_used = std::max(pool->most_used, pool->used);
  }
  const auto address = reinterpret_cast<uintptr_t>(start);
  live[address] = {address, bytes, device, pool, static_cast<char *>(map), mapped};
  return address;
}

void Memory::release(uintptr_t address) {
  const auto found = live.find(address);
  const Allocation gone = found->second;
  live.erase(found);
  used[gone.device] -= gone.bytes;
  if (Pool *const pool = gone.pool) {
    const size_t room = pool->kept - std::min(pool->kept, pool->cached), back = std::min(gone.bytes, room);
    pool->used -= gone.bytes;
    pool->cached += back;
    used[gone.device] += back;
  }
  mmap(gone.map, gone.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  graves.push_back(gone);
  if (graves.size() <= most_graves) return;
  munmap(graves.front().map, graves.front().mapped);
  graves.pop_front();
}

const Allocation *Memory::find(uintptr_t address) const {
  auto next = live.upper_bound(address);
  if (next == live.begin()) return nullptr;
  const Allocation &before = (--next)->second;
  return before.holds(address, 0) ? &before : nullptr;
}

std::string Allocation::damage() const {
  const auto *const first = reinterpret_cast<const unsigned char *>(map) + page;
  const auto *const start = reinterpret_cast<const unsigned char *>(address);
  const auto *const from = std::max(first, start - alignment), *const end = start + round_up(bytes, alignment);
  const auto say = [&](const unsigned char *byte) {
    char text[128];
    snprintf(text, sizeof text, "a byte at offset %td of an allocation of %zu bytes was written", byte - start, bytes);
    return std::string(text);
  };
  for (const auto *byte = from; byte < start; byte++)
    if (*byte != red) return say(byte);
  for (const auto *byte = start + bytes; byte < end; byte++)
    if (*byte != red) return say(byte);
  return "";
}

std::string Memory::damage(int device) const {
  for (const auto &entry : live) {
    if (entry.second.device != device) continue;
    if (std::string text = entry.second.damage(); !text.empty()) return text;
  }
  return "";
}

size_t Memory::free_bytes(int device) const { return limit() - std::min(limit(), used[device]); }

void Memory::trim(Pool &pool, size_t keep) {
  const size_t gone = pool.cached - std::min(pool.cached, keep);
  pool.cached -= gone;
  used[pool.device] -= gone;
}

void Memory::release_all(int device) {
  for (auto next = live.begin(); next != live.end();) {
    const auto entry = next++;
    if (entry->second.device == device) release(entry->first);
  }
}

}  // namespace tvmdml_emulator
